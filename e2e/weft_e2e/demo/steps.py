"""Run the demo's steps one after another, say each with its time, and keep the times for the report."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from weft_e2e.demo.facts import DemoStep

Say = Callable[[str], None]


class DemoFailed(RuntimeError):  # noqa: N818 - reads as what happened
    """Report why the demo cannot go on, in words for its user."""


@dataclass(slots=True)
class Steps:
    """The steps so far; ``say`` writes one line."""

    say: Say
    done: list[DemoStep] = field(default_factory=list)
    begin: float = field(default_factory=time.monotonic)

    @contextmanager
    def step(self, name: str) -> Iterator[Say]:
        """Announce a step, yield a way to add details, and say how long it took."""
        started = time.monotonic()
        self.say(f"[{started - self.begin:6.1f} s] {name}")
        yield self.detail
        took = time.monotonic() - started
        self.done.append(DemoStep(name=name, seconds=took))
        self.detail(f"done in {took:.1f} s")

    def detail(self, line: str) -> None:
        """Say something below the current step."""
        self.say(f"           {line}")

    @property
    def total_s(self) -> float:
        """Return the seconds since the first step."""
        return time.monotonic() - self.begin
