"""A sketch of which beginnings of prompts a worker keeps: a Bloom filter that fits into its heartbeat.

It never misses one that was added. It takes one that was not for a member with a probability of ``ERROR`` at most; a
prompt is followed from its first link to the first that is missing, so an error is a few messages of a prompt that have
to be computed all the same.
"""

from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Collection, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

MAX_LINKS: Final = 2048
"""Members of a sketch."""
BITS_PER_LINK: Final = 10
ERROR: Final = 0.01
_HASHES: Final = 7
MAX_TEXT: Final = 4 * -(-MAX_LINKS * BITS_PER_LINK // 24)
"""Characters of a sketch as a text: 3.4 KB."""


def link_digest(scope: str, link: str) -> bytes:
    """Return what stands for the beginning of a prompt within a scope, in which cached prefixes are shared."""
    return blake2b(f"{len(scope)}:{scope}{link}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def sketch_of(digests: Collection[bytes]) -> str:
    """Return a sketch as a text, "" of nothing.

    Raises:
        ValueError: there are more than MAX_LINKS.
    """
    if len(digests) > MAX_LINKS:
        raise ValueError(f"{len(digests)} links; a sketch has at most {MAX_LINKS}")
    if not digests:
        return ""
    size = -(-len(digests) * BITS_PER_LINK // 8)
    bits = bytearray(size)
    for digest in digests:
        for at in _places(digest, size * 8):
            bits[at >> 3] |= 1 << (at & 7)
    return b64encode(bits).decode("ascii")


def covered(sketch: str, digests: Sequence[bytes]) -> int:
    """Return how many of a prompt's links, from the first on, are in a sketch."""
    bits = _bits(sketch)
    if not bits:
        return 0
    for count, digest in enumerate(digests):
        if not _has(bits, digest):
            return count
    return len(digests)


def contains(sketch: str, digest: bytes) -> bool:
    """Return whether a prompt's link is in a sketch."""
    bits = _bits(sketch)
    return bool(bits) and _has(bits, digest)


def is_sketch(text: str) -> bool:
    """Return whether a text is a sketch."""
    if len(text) > MAX_TEXT or not text.isascii():
        return False
    try:
        b64decode(text, validate=True)
    except (Error, ValueError):
        return False
    return True


@lru_cache(maxsize=1024)
def _bits(sketch: str) -> bytes:
    return b64decode(sketch)


def _has(bits: bytes, digest: bytes) -> bool:
    for at in _places(digest, len(bits) * 8):  # noqa: SIM110 - as fast as can be: a coordinator asks it of each worker
        if not bits[at >> 3] >> (at & 7) & 1:
            return False
    return True


def _places(digest: bytes, bits: int) -> list[int]:
    first, second = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") | 1
    return [(first + i * second) % bits for i in range(_HASHES)]
