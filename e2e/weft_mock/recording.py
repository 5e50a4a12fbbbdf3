"""Keep the latest request bodies as they came over the wire, so that tests see what a router really sent."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_REQUESTS = 1000
_BYTES = 4 * 2**20
# One prompt of 128k tokens may fill a quarter of the ring, not all of it.
_LARGEST = 2**20


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request; ``cut`` says that the body was longer than what is kept of it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    cut: bool

    def to_json(self) -> dict[str, object]:
        """Return plain JSON values; bytes that are no UTF-8 become U+FFFD."""
        return {
            "method": self.method,
            "path": self.path,
            "headers": dict(self.headers),
            "body": self.body.decode("utf-8", "replace"),
            "cut": self.cut,
        }


class Recording:
    """A ring of at most 1,000 requests and 4 MiB of bodies; ``total`` counts those that fell out, too."""

    def __init__(self) -> None:
        """Start empty."""
        self.total = 0
        self._kept: deque[Recorded] = deque()
        self._bytes = 0

    def add(self, method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        """Keep a request and let the oldest ones go; headers of the same name are joined by commas."""
        named: dict[str, str] = {}
        for name, value in headers:
            named[str(name)] = f"{named[name]}, {value}" if name in named else value
        kept = Recorded(method, path, named, body[:_LARGEST], len(body) > _LARGEST)
        self.total += 1
        self._kept.append(kept)
        self._bytes += len(kept.body)
        while len(self._kept) > _REQUESTS or self._bytes > _BYTES:
            self._bytes -= len(self._kept.popleft().body)

    def clear(self) -> None:
        """Forget everything."""
        self.total = self._bytes = 0
        self._kept.clear()

    def to_json(self) -> dict[str, object]:
        """Return the requests, the oldest first."""
        return {"total": self.total, "requests": [each.to_json() for each in self._kept]}
