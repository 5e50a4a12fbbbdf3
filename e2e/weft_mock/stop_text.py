"""Find stop strings in text that arrives in pieces."""

from collections.abc import Sequence


class StopScanner:
    """Let text through up to the first stop string, holding back what could still become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Look for any of these texts."""
        self._stops = stops
        self._hold = max((len(stop) for stop in stops), default=1) - 1
        self._kept = ""

    def feed(self, text: str, *, last: bool) -> tuple[str, str | None]:
        """Return the text that may be sent and the stop string that was found, if any."""
        if not self._stops:
            return text, None
        kept = self._kept + text
        found = [(at, stop) for stop in self._stops if (at := kept.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            self._kept = ""
            return kept[:at], stop
        cut = len(kept) if last else max(0, len(kept) - self._hold)
        self._kept = kept[cut:]
        return kept[:cut], None
