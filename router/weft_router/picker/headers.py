"""Turn the headers that a proxy sends into a request, and say which of them go on to the worker and to the client."""

import re
from typing import Final

from weft_router.http.head import SINGLETONS, FramingError, Request, bad_request, length_of
from weft_router.picker.messages import Fields

DESTINATION: Final = "x-gateway-destination-endpoint"
MODEL_NAME: Final = "x-gateway-model-name"

_TARGET: Final = re.compile(r"/[!-\"$-~]*")
_TO_WORKER: Final = frozenset({"host", "connection", "content-length", "te", "transfer-encoding", "user-agent"})
"""Headers of clients that workers get: only what carries the request, nothing that says who sent it."""
_PROXY_PREFIXES: Final = (":", "x-envoy-", "x-forwarded-")
"""Headers that are the proxy's own."""
_TO_CLIENT: Final = frozenset({"date", "server", "connection", "transfer-encoding", "via"})
"""Headers of a worker's answer that the proxy, not the router, decides about."""
_HOP: Final = frozenset({"connection", "content-length", "server", "transfer-encoding"})
"""Headers of the router's answer that stand for its own connection."""


def request_of(fields: Fields, *, max_body: int) -> Request:
    """Return the request with these headers, its body empty; of headers that come twice the values are joined.

    Its answer is written for HTTP/1.0, whose bodies have no framing of their own.

    Raises:
        FramingError: they are no acceptable request.
    """
    method = target = ""
    headers: dict[str, str] = {}
    for name, value in fields:
        if name == ":method":
            method = value
        elif name == ":path":
            target = value
        elif name == ":authority":
            headers["host"] = value
        elif not name.startswith(":"):
            if name in headers:
                if name in SINGLETONS:
                    raise bad_request(f"{name}: may be given only once")
                value = f"{headers[name]}, {value}"
            headers[name] = value
    if not _TARGET.fullmatch(target):
        raise bad_request("the request line must have a path that begins with '/', in visible ASCII characters")
    if "content-length" in headers:
        length_of(headers["content-length"], max_body)
    path, _, query = target.partition("?")
    return Request(method, path, query, headers, b"", http10=True, keep_alive=False)


def refused_request(fields: Fields) -> Request:
    """Return a request that cannot be read, for the answer that says so."""
    target = next((value for name, value in fields if name == ":path"), "")
    return Request("", target.partition("?")[0][:128], "", {}, b"", http10=True, keep_alive=False)


def removed_of_request(fields: Fields, given: Fields) -> tuple[str, ...]:
    """Return the client's headers that must not reach the worker; ``given`` are those that are replaced."""
    replaced = {name for name, _ in given}
    found = {
        name
        for name, _ in fields
        if name not in _TO_WORKER and name not in replaced and not name.startswith(_PROXY_PREFIXES)
    }
    return tuple(sorted(found))


def removed_of_response(fields: Fields, given: Fields) -> tuple[str, ...]:
    """Return the headers of a worker's answer that the client does not get; ``given`` are those that are replaced."""
    replaced = {name for name, _ in given}
    found = {
        name
        for name, _ in fields
        if name not in _TO_CLIENT and name not in replaced and not name.startswith(_PROXY_PREFIXES)
    }
    return tuple(sorted(found))


def split_lines(lines: str) -> Fields:
    """Return the headers in lines as ``header_lines`` writes them, names in lower case."""
    found = []
    for line in lines.split("\r\n"):
        if line:
            name, _, value = line.partition(":")
            found.append((name.strip().lower(), value.strip()))
    return tuple(found)


def split_head(head: bytes) -> tuple[int, Fields]:
    """Return the status and the headers of an answer that an exchange wrote, without those of its connection."""
    first, _, rest = head.decode("latin-1").partition("\r\n")
    fields = tuple((name, value) for name, value in split_lines(rest) if name not in _HOP)
    return int(first.split(" ", 2)[1]), fields


def status_of(fields: Fields) -> int:
    """Return the status of an answer; 502 if the proxy gave none."""
    status = next((value for name, value in fields if name == ":status"), "")
    return int(status) if status.isdigit() else 502


__all__ = [
    "DESTINATION",
    "MODEL_NAME",
    "FramingError",
    "refused_request",
    "removed_of_request",
    "removed_of_response",
    "request_of",
    "split_head",
    "split_lines",
    "status_of",
]
