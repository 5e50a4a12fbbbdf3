"""Workers as they are: their names, the groups they belong to, which are ready, and which are lost. Pure."""
