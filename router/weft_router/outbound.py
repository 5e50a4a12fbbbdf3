"""Connect to a host that somebody else chose: its name is resolved once, and every address of it is judged first."""

import os
import socket
from collections.abc import Mapping

from weft_core.addresses import refused_address


class AddressRefusedError(OSError):
    """A host has an address that may not be asked."""


def create_connection(
    address: tuple[str, int],
    timeout: float | None = None,
    source_address: tuple[str, int] | None = None,
    *,
    env: Mapping[str, str] = os.environ,
) -> socket.socket:
    """Return a connection to a host and port, as ``socket.create_connection`` does.

    Raises:
        AddressRefusedError: one of the host's addresses is loopback, link-local, a metadata server's or that of the API
            server's Service: an honest name has none of them, and another answer of the name server would change
            nothing.
        OSError: the host is not found, or does not answer.
    """
    host, port = address
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    denied = _api_server(env)
    for *_, place in found:
        why = refused_address(str(place[0]), denied)
        if why is not None:
            raise AddressRefusedError(f"{host} is not asked: {place[0]} {why}")
    failure: OSError = OSError(f"{host} has no address")
    for *_, place in found:
        try:
            return socket.create_connection((str(place[0]), port), timeout, source_address)
        except OSError as error:
            failure = error
    raise failure


def _api_server(env: Mapping[str, str]) -> list[str]:
    """Return the addresses of the API server's Service; some clouds give pods a host name for it."""
    host = env.get("KUBERNETES_SERVICE_HOST", "")
    return [str(place[0]) for *_, place in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)] if host else []
