"""Condense long texts into a few bytes that nobody can make two texts agree in: fast, and keyed.

SHA-256 takes 40 µs for 64 KB; GHASH, the authenticator of AES-GCM, takes 4, for most processors have it built in. GHASH
alone is no hash: who knows its key can make collisions. So the key is the service's secret, and the result never leaves
the process but inside a SHA-256. Processes that shall find each other's conversations need the same key.
"""

import hashlib
import secrets
from functools import lru_cache
from typing import Final, Protocol

LONG: Final = 4096
"""Bytes from which on the detour pays: below it SHA-256 is as fast, and nothing has to be loaded."""
_NONCE = bytes(12)
_KEY_BYTES = 16


class _Mac(Protocol):
    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes:
        """Return the tag over associated data when there is nothing to encrypt."""


class _Key:
    """The key of this process; drawn at random until a service's is set."""

    value = secrets.token_bytes(_KEY_BYTES)


def use_key(secret: bytes) -> None:
    """Take the key from a service's secret, before any text is condensed."""
    _Key.value = hashlib.blake2b(secret, digest_size=_KEY_BYTES, person=b"weft-transcript").digest()


def condensed(raw: bytes) -> bytes:
    """Return 16 bytes that stand for a long text; 32 where the fast way is not there."""
    mac = _mac(_Key.value)
    return hashlib.sha256(raw).digest() if mac is None else mac.encrypt(_NONCE, b"", raw)


@lru_cache(maxsize=4)
def _mac(key: bytes) -> _Mac | None:
    try:
        # Loaded with the first long text: it takes 9 MB that a router of short prompts can do without.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        return None
    return AESGCM(key)
