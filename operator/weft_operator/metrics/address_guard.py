"""Refuse connections of user-supplied URLs to loopback, link-local, metadata and API server addresses.

A name is resolved once, every address of it is judged, and connected is to those: another answer of its name server a
moment later changes nothing. A server of one's own that a name leads to is none of an honest service's.
"""

import os
import socket
from typing import Any

import requests
import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import NameResolutionError, NewConnectionError

from weft_core.addresses import refused_address


def restrict(session: requests.Session) -> None:
    """Restrict the connections of a session to addresses that user-supplied URLs may have."""
    for adapter in session.adapters.values():
        manager = getattr(adapter, "poolmanager", None)
        if manager is not None:
            pools = manager.pool_classes_by_scheme
            manager.pool_classes_by_scheme = {scheme: _restricted(pool) for scheme, pool in pools.items()}


def judged(host: str, port: int | None) -> list[str]:
    """Return the addresses of a host.

    Raises:
        PermissionError: one of them may not be asked.
        socket.gaierror: it has none.
    """
    found = [str(place[0]) for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    server = os.environ.get("KUBERNETES_SERVICE_HOST", "")  # some clouds give pods a host name for it
    denied = [str(place[0]) for *_, place in socket.getaddrinfo(server, None)] if server else []
    for address in found:
        why = refused_address(address, denied)
        if why is not None:
            raise PermissionError(f"{address} {why}")
    return list(dict.fromkeys(found))


def _restricted(pool: type[urllib3.HTTPConnectionPool]) -> type[urllib3.HTTPConnectionPool]:
    connection: Any = pool.ConnectionCls

    def connect(self: Any) -> socket.socket:
        name = self._dns_host
        try:
            addresses = judged(name, self.port)
        except PermissionError as error:
            raise NewConnectionError(self, str(error)) from error
        except socket.gaierror as error:
            raise NameResolutionError(name, self, error) from error
        failure: Exception = NewConnectionError(self, "no address")
        for address in addresses:
            self._dns_host = address
            try:
                made: socket.socket = connection._new_conn(self)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                failure = error
            else:
                return made
            finally:
                self._dns_host = name  # what its certificate must say
        raise failure

    made: type[HTTPConnection] = type("Restricted", (connection,), {"_new_conn": connect})
    return type("RestrictedPool", (pool,), {"ConnectionCls": made})
