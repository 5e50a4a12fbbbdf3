"""How long work reports its progress, and the names of what takes longest."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Gets what is being done, how many of its steps are done, and how many there are."""
IN_FULL = "simulating the best layouts"
COMPILING = "compiling the simulator, once per installation (less than a minute)"
"""Reported when there is no machine code of this version yet; later simulations begin at once."""


def ignore_progress(_stage: str, _done: int, _total: int) -> None:
    """Report nothing."""
