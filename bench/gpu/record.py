"""What a step found, in a file that is complete after every point."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Record:
    """The JSON file of one step; it is rewritten at once after every point, so that an aborted run keeps the others."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """Begin with what the step is about."""
        self._path = path
        self.body: dict[str, Any] = dict(about)

    def save(self) -> None:
        """Write the file: a reader never sees half of it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_name(self._path.name + ".part")
        part.write_text(_compact(self.body) + "\n", encoding="utf-8")
        part.replace(self._path)


def _compact(body: Mapping[str, Any]) -> str:
    """Return JSON with one line per field, and one per entry of a list of objects."""
    lines = []
    for name, value in body.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            entries = ",\n  ".join(json.dumps(entry) for entry in value)
            text = f"[\n  {entries}\n ]"
        else:
            text = json.dumps(value)
        lines.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}"


def read(path: Path) -> dict[str, Any] | None:
    """Return a step's record; None where there is none."""
    if not path.exists():
        return None
    body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return body


class Budget:
    """The seconds of one step."""

    def __init__(self, seconds: float) -> None:
        """Begin now."""
        self._began = time.monotonic()
        self._seconds = seconds

    @property
    def spent(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self._began

    @property
    def over(self) -> bool:
        """Tell whether nothing more should begin."""
        return self.spent >= self._seconds


def spread(items: list[Any], parts: int = 5) -> list[Any]:
    """Return the items in an order in which the first ones are from everywhere: a step cut short has some of each."""
    return [item for first in range(parts) for item in items[first::parts]]


def say(text: str) -> None:
    """Print a line of progress at once."""
    print(text, flush=True)
