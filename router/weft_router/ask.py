"""Ask a router process for what it serves its own service only: ``python -m weft_router.ask /debug/decisions?n=10``.

The connection proves that it knows the service's token, as hops between router processes do; the token is not sent.
"""

import argparse
import http.client
import os
import sys
from hmac import compare_digest
from pathlib import Path
from urllib.parse import urlsplit

from weft_core.authority import authority
from weft_core.keys import derive
from weft_router.http.handshake import (
    AUTHORITY_HEADER,
    HELLO_PATH,
    NONCE_HEADER,
    PROOF_HEADER,
    PROVE_PATH,
    UnauthenticatedPeerError,
    fresh_nonce,
    proof_of,
)

TOKEN_FILE = "/etc/weft-token/token"  # noqa: S105 - where it is, not what it says
URL = "http://127.0.0.1:8080"
TIMEOUT_S = 5.0


def read_token() -> bytes:
    """Return the service's token, from the file that WEFT_TOKEN_FILE names.

    Raises:
        OSError: there is none.
    """
    return Path(os.environ.get("WEFT_TOKEN_FILE", TOKEN_FILE)).read_bytes().strip()


def ask(url: str, *, token: bytes, method: str = "GET", timeout_s: float = TIMEOUT_S) -> tuple[int, bytes]:
    """Return the status and body of an answer to a request without a body.

    Raises:
        UnauthenticatedPeerError: whoever answers is no router process of the service, or takes this one for none.
        OSError: nobody answers.
        http.client.HTTPException: what answers does not speak HTTP.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UnauthenticatedPeerError(f"{url}: give a URL such as {URL}/debug/decisions")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=timeout_s)
    try:
        connection.connect()
        host, port = connection.sock.getpeername()[:2]
        _prove(connection, derive(token, "hop"), authority(host, port))
        connection.request(method, f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}")
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _prove(connection: http.client.HTTPConnection, key: bytes, dialled: str) -> None:
    asked = fresh_nonce()
    found = _head(connection, HELLO_PATH, {AUTHORITY_HEADER: dialled, NONCE_HEADER: asked})
    answered = found.headers.get(NONCE_HEADER, "")
    expected = proof_of(key, "server", dialled, asked, answered)
    if found.status != 204 or not compare_digest(found.headers.get(PROOF_HEADER, "").encode(), expected.encode()):
        raise UnauthenticatedPeerError("whoever answers there does not know the service's token")
    mine = proof_of(key, "client", dialled, asked, answered)
    if _head(connection, PROVE_PATH, {PROOF_HEADER: mine}).status != 204:
        raise UnauthenticatedPeerError("the proof of the service's token was refused")


def _head(connection: http.client.HTTPConnection, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    response.read()
    return response


def main() -> int:
    """Print the answer; return 0 when it is 200."""
    parser = argparse.ArgumentParser(prog="python -m weft_router.ask", description=__doc__)
    parser.add_argument("path", help=f"a path of the router process in this pod, or a URL; for example {URL}/metrics")
    path: str = parser.parse_args().path
    url = URL + path if path.startswith("/") else path
    try:
        status, body = ask(url, token=read_token())
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"weft ask: {url}: {error}\n")
        return 1
    sys.stdout.write(body.decode("utf-8", "replace"))
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
