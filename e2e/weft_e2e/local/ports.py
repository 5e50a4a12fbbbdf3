"""Choose ports of loopback that nobody listens on."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack

HOST = "127.0.0.1"

USUAL = 8080
"""The router's port where it is free and no other is asked for."""


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


def free_ports(count: int) -> Sequence[int]:
    """Return as many ports as asked for that were free a moment ago."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in sockets]
