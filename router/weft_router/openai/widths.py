"""Tell how much wider than its JSON a body's texts are in memory: one character makes all of its text so wide.

Python keeps a text in one, two or four bytes a character, whichever its widest character needs.
"""

import asyncio
import re
from typing import Final

from weft_router.openai.nodes import SLICE

_WIDEST: Final = 3
_LEADS: Final = tuple(bytes([lead]) for lead in range(0xF0, 0xF5))
"""What characters beyond the first 65,536 begin with in UTF-8; they need four bytes."""
_PAIR: Final = re.compile(rb"\\u[dD][89abAB]")
"""What they begin with where they are escaped."""
_CUT: Final = 3
"""Bytes of an escape that may be in the next slice."""


def widening(raw: bytes) -> int:
    """Return how many times its length the texts of a JSON text take at most, beyond its length itself: 0, 1 or 3.

    What is no ASCII may be Latin-1, and counts as wide all the same.
    """
    plain = raw.isascii()
    if not plain and any(lead in raw for lead in _LEADS):
        return _WIDEST
    if b"\\" in raw and b"\\u" in raw:
        return _WIDEST if _PAIR.search(raw) else 1
    return 0 if plain else 1


async def widening_in_turns(raw: bytes) -> int:
    """Do as ``widening`` does; while a long text is looked at, others are served."""
    found = 0
    for at in range(0, len(raw), SLICE):
        found = max(found, widening(raw[at : at + SLICE + _CUT]))
        if found == _WIDEST:
            break
        await asyncio.sleep(0)
    return found
