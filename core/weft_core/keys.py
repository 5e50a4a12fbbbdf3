"""Keys that a service's token is used for: one for each purpose, so that none of them tells another one, or the token.

The token itself is never sent, stored or compared.
"""

import hmac
from typing import Final, Literal

Purpose = Literal[
    "hop", "state", "salt", "response ids", "transcripts", "quarantine", "engine proof", "picker",
    "redis user", "redis password", "redis url",
]  # fmt: skip
"""hop: a router process proves itself to another. state: records in Redis. salt: prefix caches of tenants.

response ids: who made a response. transcripts: digests of what sessions began with. engine proof: an engine's plug-in
knows its router. quarantine: digests of requests that ended engines. redis user, redis password: the service's user in
Redis. redis url: the name under which a Secret holds a Redis URL.
"""

MAC_BYTES: Final = 16
"""Of a MAC over what is rewritten at once when it does not verify, such as a binding: 128 bits."""


def derive(token: bytes, purpose: Purpose) -> bytes:
    """Return the 32 bytes of the key for one purpose."""
    return hmac.digest(token, b"weft " + purpose.encode("ascii"), "sha256")
