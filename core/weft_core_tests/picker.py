"""Choices read from bytes, so that a fuzzer that mutates the bytes changes one choice at a time."""

import struct
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Picker:
    """Reads choices from the front of some bytes; when none are left, the first choice is taken."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def take(self, count: int) -> bytes:
        """Return the next bytes, fewer where the end is reached."""
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def number(self, most: int) -> int:
        """Return a number from 0 to ``most``."""
        return int.from_bytes(self.take(2), "little") % (most + 1)

    def choice(self, options: Sequence[T]) -> T:
        """Return one of some options."""
        return options[self.number(len(options) - 1)]

    def real(self) -> float:
        """Return any number that eight bytes can be, NaN and the infinite ones among them."""
        return float(struct.unpack("<d", self.take(8).ljust(8, b"\0"))[0])

    def rest(self) -> bytes:
        """Return all bytes that are left."""
        return self.take(len(self._data))
