"""Names of what long work is doing, for whoever is told of its progress."""

COMPILING = "compiling the simulator, once per installation (about 20 s)"
"""Told when no machine code of this version is kept yet; later simulations begin at once."""
