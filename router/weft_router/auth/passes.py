"""Passes for rounds that a gateway's proxy carries from an endpoint picker to a decode worker's sidecar.

Router processes prove themselves once per connection (``http.handshake``). A proxy cannot do that, so the picker signs
each request that it sends to a worker. The pass is a MAC over everything that the sidecar acts on: path, address of the
worker, time, digest of the body, and the router's own headers. It is valid for a minute and for one use:

    X-Weft-Pass: SECONDS.SHA256-OF-BODY.MAC
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from weft_core.records import MAX_SKEW_S
from weft_router.errors import ApiError

PASS_HEADER: Final = "x-weft-pass"  # noqa: S105 - the name of a header
KEY_PURPOSE: Final = "picker"
"""What the key of passes is derived for, from the service's token."""
MOST_USED: Final = 200_000
"""Used passes that a sidecar remembers; above it the oldest is forgotten."""
_PREFIX: Final = "x-weft-"
_SIGNED: Final = frozenset({"x-request-id"})
"""Signed headers that do not begin with the prefix."""
_FORM: Final = re.compile(r"([0-9]{1,12})\.([0-9a-f]{64})\.([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass with a valid MAC; its body has yet to be compared."""

    digest: str
    mac: str
    issued_at: int


def issue(key: bytes, *, path: str, authority: str, headers: Mapping[str, str], body: bytes, now: float) -> str:
    """Return the pass of one request to the worker at ``authority``; ``now`` is seconds since 1970.

    The names of ``headers`` are in lower case.
    """
    at, digest = str(int(now)), hashlib.sha256(body).hexdigest()
    return f"{at}.{digest}.{_mac(key, path, authority, at, digest, headers)}"


class PassVerifier:
    """A sidecar's check of passes; ``authority`` is where pickers find this worker."""

    def __init__(self, key: bytes, authority: str) -> None:
        self._key = key
        self._authority = authority
        self._used: dict[str, int] = {}
        """When each used pass was issued, by its MAC, in order of use."""

    def verify(self, path: str, headers: Mapping[str, str], now: float) -> Pass | None:
        """Return the pass of a request for a path; None where it has none.

        Raises:
            ApiError: the pass is not valid here and now.
        """
        given = headers.get(PASS_HEADER)
        if given is None:
            return None
        match = _FORM.fullmatch(given)
        if match is None:
            raise _refused("is not a pass of an endpoint picker")
        at, digest, mac = match[1], match[2], match[3]
        expected = _mac(self._key, path, self._authority, at, digest, headers)
        if not hmac.compare_digest(mac, expected):
            raise _refused("was not issued for this request and worker")
        if abs(int(at) - now) > MAX_SKEW_S:
            raise _refused(f"is not from within {MAX_SKEW_S:.0f} s; check the clocks of the nodes")
        return Pass(digest, mac, int(at))

    def redeem(self, valid: Pass, body: bytes) -> None:
        """Use a valid pass for its body, once.

        Raises:
            ApiError: it is for another body, or was used before.
        """
        if not hmac.compare_digest(hashlib.sha256(body).hexdigest(), valid.digest):
            raise _refused("was issued for another body")
        used = self._used
        if valid.mac in used:
            raise _refused("was used before; the proxy must not send a request again")
        for mac in [mac for mac, at in _oldest(used) if at + 2 * MAX_SKEW_S < valid.issued_at]:
            del used[mac]
        if len(used) >= MOST_USED:
            del used[next(iter(used))]
        used[valid.mac] = valid.issued_at


def _oldest(used: dict[str, int]) -> list[tuple[str, int]]:
    """Return the first few entries: more are removed than are added."""
    first = []
    for entry in used.items():
        first.append(entry)
        if len(first) == 2:
            break
    return first


def _mac(key: bytes, path: str, authority: str, at: str, digest: str, headers: Mapping[str, str]) -> str:
    lines = sorted(
        f"{name}:{value}"
        for name, value in headers.items()
        if name != PASS_HEADER and (name.startswith(_PREFIX) or name in _SIGNED)
    )
    return hmac.digest(key, "\0".join((path, authority, at, digest, *lines)).encode("utf-8", "replace"), "sha256").hex()


def _refused(why: str) -> ApiError:
    return ApiError(f"{PASS_HEADER}: {why}", status=401)
