"""Commands of the ``weft`` program for running services, and the programs that generate files."""
