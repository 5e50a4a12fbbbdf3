"""Choose ports of loopback that nobody listens on."""

import atexit
import random
import socket
from collections import deque
from contextlib import ExitStack

HOST = "127.0.0.1"

USUAL = 8080
"""The router's port where it is free and no other is asked for."""


_QUIET = range(20000, 30000)
"""Below what Linux and macOS give to outgoing connections, and Kubernetes to node ports."""

_MOST_KEPT = 128
"""Of the ports a process got so many stay reserved: more than a stack takes, and half of the files that macOS opens."""
_kept: deque[socket.socket] = deque()


class PortTaken(OSError):  # noqa: N818 - reads as what happened
    """Report that the port asked for is in use."""


def router_port(wanted: int | None) -> int:
    """Return the port asked for; without one the usual, or any free one where that is taken.

    Raises:
        PortTaken: somebody listens on the port asked for.
    """
    for port in (USUAL, 0) if wanted is None else (wanted,):
        with socket.socket() as trial:
            # As servers bind: connections of one that has ended do not keep its port.
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((HOST, port))
            except OSError:
                continue
            return int(trial.getsockname()[1])
    raise PortTaken(f"--port {wanted}: something listens there already; choose another, or leave it out")


def free_ports(count: int, *, width: int = 1) -> list[int]:
    """Return as many ports as asked for that nobody listens on, and that no other caller has got lately.

    They are none that the kernel gives to outgoing connections: a program that takes half a minute to bind its port
    would find it taken by one of these. Who gets a port keeps the UDP port of its number, so that several stacks that
    start at the same time get different ones. ``width``: each port is the first of so many in a row.
    """
    found: list[int] = []
    with ExitStack() as held:
        for first in random.sample(_QUIET, len(_QUIET)):
            if all(_reserve(port, held) for port in range(first, first + width)):
                found.append(first)
            if len(found) == count:
                return found
    raise PortTaken(f"fewer than {count} of the ports {_QUIET.start} to {_QUIET.stop - 1} are free")


def _reserve(port: int, held: ExitStack) -> bool:
    """Keep a port's UDP twin, and the port itself as long as ``held``; False where either is taken."""
    one = held.enter_context(socket.socket())
    kept = socket.socket(type=socket.SOCK_DGRAM)
    try:
        one.bind((HOST, port))
        kept.bind((HOST, port))
    except OSError:
        kept.close()
        return False
    _keep(kept)
    return True


def _keep(one: socket.socket) -> None:
    if len(_kept) == _MOST_KEPT:
        _kept.popleft().close()
    _kept.append(one)


@atexit.register
def _release() -> None:
    while _kept:
        _kept.popleft().close()
