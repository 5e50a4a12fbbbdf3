"""Hold a measured profile to shapes it has not seen, and a plan made with it to sessions on real engines."""
