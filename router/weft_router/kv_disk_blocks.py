"""Which KV blocks ``kv_disk`` deleted: vLLM's tier of files publishes no event when a file goes.

Files are named by their blocks' hashes (vLLM's v1/kv_offload/file_mapper.py), of which events, and the index of the
router's sidecar, have the last 8 bytes.
"""

import os
import re
from array import array
from threading import Lock

KEPT = 262_144
"""Blocks that are remembered at least, 8 bytes each; a reader that comes later forgets all blocks of the disk."""
PAGE = 2048
_NAME = re.compile(r"(?:^|/)[0-9a-f]{2}_g(\d+)/(?:[0-9a-f]{2})*([0-9a-f]{16})\.bin$")
_FIRST_GROUP = 0
"""As in the index: of a model whose layers are in groups the first one counts."""


class DeletedBlocks:
    """The blocks whose files were deleted last, by number."""

    def __init__(self, *, kept: int = KEPT) -> None:
        self.run = os.urandom(8).hex()
        """Names this process: numbers begin again with each."""
        self._kept = kept
        self._first = 0
        self._hashes = array("Q")
        self._lock = Lock()

    @property
    def count(self) -> int:
        """Return how many there were, the number of the next."""
        return self._first + len(self._hashes)

    def add(self, path: str) -> None:
        """Record a deleted file; after one whose name says no block, readers know of none before it."""
        if path.endswith(".tmp"):
            return  # it was never read
        found = _NAME.search(path)
        with self._lock:
            if found is None:
                self._first += len(self._hashes) + 1
                del self._hashes[:]
            elif int(found[1]) == _FIRST_GROUP:
                self._hashes.append(int(found[2], 16))
                if len(self._hashes) >= 2 * self._kept:
                    self._first += self._kept
                    del self._hashes[: self._kept]

    def page(self, after: int) -> dict[str, object]:
        """Return some of the blocks from a number on, and the number of the first: a larger one where some are gone."""
        with self._lock:
            first = max(after, self._first)
            at = first - self._first
            return {"run": self.run, "first": first, "hashes": self._hashes[at : at + PAGE].tolist()}
