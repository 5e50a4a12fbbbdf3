"""Keys of KV blocks: 64 bits that stand for a block's tokens and all tokens before it.

Engines hash blocks in ways of their own, with seeds that may change with each start. Keys are ours: a prompt's come
from its token ids, those of an engine's blocks from the ids in its events, and both are compared.

What else than tokens decides a block's KV is part of its key, as engines have it in their hashes (vLLM's
``extra_keys``): the name of an adapter in every block, the cache salt in the first, pictures where they are.
"""

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

START: Final = 0
"""The key before the first block."""
ID_BYTES: Final = 4


def id_bytes(ids: Sequence[int]) -> bytes:
    """Return token ids, 4 bytes each.

    Raises:
        OverflowError: one does not fit.
    """
    return ids.tobytes() if isinstance(ids, array) and ids.typecode == "I" else array("I", ids).tobytes()


def block_keys(before: int, ids: bytes, block_tokens: int, extras: Sequence[bytes] = ()) -> list[int]:
    """Return the keys of the whole blocks of token ids after the block with the key ``before``.

    ``extras`` is what else counts, one for each block; the last one stands for all that follow it.
    """
    width = block_tokens * ID_BYTES
    last = len(extras) - 1
    keys: list[int] = []
    for index, at in enumerate(range(0, len(ids) - width + 1, width)):
        block = before.to_bytes(8, "little") + ids[at : at + width]
        if last >= 0:
            block += extras[min(index, last)]
        before = int.from_bytes(blake2b(block, digest_size=8).digest(), "little")
        keys.append(before)
    return keys


def extra_bytes(extras: Iterable[object] | None) -> bytes:
    """Return what a block's extra keys are in its key: texts, numbers, bytes and lists of these, told apart by type.

    Raises:
        TypeError: there is something else.
    """
    return b"".join(map(_tagged, extras)) if extras else b""


def prompt_extras(adapter: str | None, salt: str | None) -> tuple[bytes, ...]:
    """Return the extras of a prompt of text alone: with the salt for its first block, without for those after it."""
    names = (adapter,) if adapter else ()
    if salt is None:
        return (extra_bytes(names),) if names else ()
    return extra_bytes((*names, salt)), extra_bytes(names)


def _tagged(value: object) -> bytes:
    if isinstance(value, str):
        kind, raw = b"s", value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        kind, raw = b"b", value
    elif isinstance(value, int) and not isinstance(value, bool):
        kind, raw = b"i", str(value).encode()
    elif isinstance(value, list | tuple):
        kind, raw = b"l", extra_bytes(value)
    else:
        raise TypeError(f"{type(value).__name__}: not an extra key")
    return b"%b%d:%b" % (kind, len(raw), raw)
