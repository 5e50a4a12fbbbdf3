"""Where log lines go: a descriptor of this process that must not block it, or a file that is rotated."""

import os
import select
import stat
from pathlib import Path


class Descriptor:
    """Standard output or error, written to only as far as it does not block."""

    def __init__(self, fd: int) -> None:
        """Open the descriptor's pipe anew, where the system lets us, for a mode of our own.

        The mode belongs to what is open, not to the descriptor: set on the one we got, it would surprise everyone else
        who writes there. Without one of our own we ask before each piece whether it would block.
        """
        regular = _regular(fd)
        self._own: int | None = None
        if not regular:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            try:
                self._own = os.open(f"/proc/self/fd/{fd}", flags)
            except OSError:
                self._own = None
        self._asks = self._own is None and not regular
        self._fd = fd if self._own is None else self._own
        # What a pipe takes whole, or not at all; a file takes anything.
        self.piece = 64 * 1024 if regular else select.PIPE_BUF

    def put(self, data: bytes) -> int:
        """Write as much as does not block, and return how many bytes that were."""
        if self._asks and not self._writable(0.0):
            return 0
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0

    def wait(self, seconds: float) -> None:
        """Wait until there is room again."""
        self._writable(seconds)

    def close(self) -> None:
        """Close what was opened here."""
        if self._own is not None:
            os.close(self._own)
            self._own = None
            self._fd = -1

    def _writable(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(seconds * 1000))


class RotatedFile:
    """A file that moves to ``name.1`` when it would grow over its size; ``files`` are kept in all."""

    piece = 64 * 1024

    def __init__(self, path: Path, *, max_bytes: int, files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._files = files
        self._fd: int | None = None
        self._size = 0

    def put(self, data: bytes) -> int:
        """Append to the file, opening or rotating it first where needed."""
        if self._fd is not None and self._size + len(data) > self._max_bytes:
            self.close()
            self._rotate()
        if self._fd is None:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            self._size = os.fstat(self._fd).st_size
            if self._size and self._size + len(data) > self._max_bytes:
                return self.put(data)
        written = os.write(self._fd, data)
        self._size += written
        return written

    def wait(self, seconds: float) -> None:
        """Return at once: files do not block."""

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _rotate(self) -> None:
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{k}") for k in range(1, self._files))]
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            if newer.exists():
                newer.replace(older)
        if self._files == 1:
            self._path.unlink(missing_ok=True)


def _regular(fd: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False
