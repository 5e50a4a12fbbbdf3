"""How long work tells what it is doing, and the names of what takes longest."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many of its steps are through, and how many there are."""
COMPILING = "compiling the simulator, once per installation (about 20 s)"
"""Told when no machine code of this version is kept yet; later simulations begin at once."""
