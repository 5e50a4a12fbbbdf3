"""The values of a trace: sessions of rounds, or bare lengths where the source has no sessions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Form = Literal["sessions", "requests", "lengths", "request-log"]


class TraceError(ValueError):
    """Report a trace that cannot be used; the message names the file, and the line and field where there is one."""


class BadLineError(TraceError):
    """Report a bad line of a trace; ``place`` is what to say where bad lines cannot be skipped."""

    def __init__(self, file: str, number: int, fault: object) -> None:
        self.place = f"{file} line {number}: {fault}; correct it"
        super().__init__(f"{self.place}, or skip and count such lines with --skip-bad")


@dataclass(frozen=True, slots=True)
class Round:
    """One model call: tokens added to the context, tokens written, and the pause before it in seconds.

    ``gap_s`` is None where the source has no timing. ``interval_s`` is the time since the previous call of the
    session began, model time included, where that is all the source tells.
    """

    added_tokens: int
    decode_tokens: int
    gap_s: float | None = None
    interval_s: float | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """One recorded conversation or agent run; ``labels`` are its other text fields, by name."""

    name: str
    rounds: tuple[Round, ...]
    arrival_s: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


Lengths = Mapping[str, tuple[float, ...]]
"""Values of single figures (``rounds``, ``first_prompt``, ``increment``, ``decode``) that belong to no session."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A file's sessions or lengths, with what must be said of them: ``notes`` and the lines that were ``skipped``.

    ``prefix_tokens`` is the leading part that the prompts of at least half of all requests share, 0 where unknown.
    """

    name: str
    form: Form
    sessions: tuple[Session, ...] = ()
    lengths: Lengths = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    prefix_tokens: int = 0

    @property
    def rounds(self) -> int:
        """Return how many rounds the sessions have."""
        return sum(len(session.rounds) for session in self.sessions)
