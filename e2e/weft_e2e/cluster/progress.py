"""Says while something is built how far it is and how long the rest takes."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from weft_e2e.cluster.estimate import REFERENCE_CORES, duration_words, remaining_s, share_words

Progress = Callable[[str], None]
EVERY_S = 30.0


class Work:
    """Parts of known size that are done side by side; safe to use from several threads."""

    def __init__(self, parts: Mapping[str, float], progress: Progress, *, every_s: float = EVERY_S) -> None:
        """Expect these parts, each with its seconds on REFERENCE_CORES idle cores."""
        self._size = dict(parts)
        self._done = dict.fromkeys(parts, 0.0)
        self._running: list[str] = []
        self.progress = progress
        self._every_s = every_s
        self._begin = time.monotonic()
        self._lock = threading.Lock()
        self._over = threading.Event()

    def announcement(self) -> str:
        """Return what is going to be made, and how long it takes on this machine."""
        cores = os.cpu_count() or REFERENCE_CORES
        remaining = remaining_s(total=sum(self._size.values()), done=0.0, elapsed_s=0.0, cores=cores)
        machine = "this machine's one core" if cores == 1 else f"this machine's {cores} cores"
        return f"to make: {', '.join(self._size)}; {duration_words(remaining)} on {machine}"

    def resize(self, part: str, share: float) -> None:
        """Learn that only a share of a part is left to do: the rest was found ready."""
        with self._lock:
            self._size[part] *= share

    def advance(self, part: str, share: float) -> None:
        """Note which share of a part is done."""
        with self._lock:
            self._done[part] = self._size[part] * min(max(share, 0.0), 1.0)

    @contextmanager
    def part(self, part: str) -> Iterator[None]:
        """Make one part inside the block, and say how long it took; nothing where it fails."""
        begin = time.monotonic()
        with self._lock:
            self._size.setdefault(part, 0.0)
            self._running.append(part)
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(part)
        self.advance(part, 1.0)
        self.progress(f"made {part} in {time.monotonic() - begin:.0f} s")

    def state(self) -> str:
        """Return how much is done, what is at work and how long the rest takes."""
        with self._lock:
            total, done, running = sum(self._size.values()), sum(self._done.values()), ", ".join(self._running)
        elapsed = time.monotonic() - self._begin
        rest = remaining_s(total=total, done=done, elapsed_s=elapsed, cores=os.cpu_count() or REFERENCE_CORES)
        return f"{share_words(total=total, done=done)} done, {duration_words(rest)} left ({running})"

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Say at the start what will be made, and now and then inside the block how far it is."""
        if not self._size:
            yield
            return
        self.progress(self.announcement())
        teller = threading.Thread(target=self._tell, daemon=True)
        teller.start()
        try:
            yield
        finally:
            self._over.set()
            teller.join()

    def _tell(self) -> None:
        while not self._over.wait(self._every_s):
            self.progress(self.state())
