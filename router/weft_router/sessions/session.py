"""The state of a session between two rounds, and the match of its next round with that state."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from weft_core.policies.snapshot import PrefillTask
from weft_router.engines.handles import KvHandle, Outcome
from weft_router.mypyc_compat import mypyc_attr
from weft_router.openai.prompt_history import PromptHistory
from weft_router.sessions.return_times import ReturnCounts
from weft_router.state.bindings import LastPrefill


class CachedPrompt(NamedTuple):
    """A prompt that a prefill worker computed or read: its tokens, and when, on the monotonic clock."""

    tokens: int
    at: float


_NOWHERE: Final[Mapping[str, CachedPrompt]] = {}
_IN_MEMORY: Final[Mapping[str, int]] = {}


class KvOrigin(NamedTuple):
    """The worker that a session left, how much of the history its engine has, and how long it loads that from tiers."""

    worker: str
    tokens: int
    load_s: float


@mypyc_attr(acyclic=True)
@dataclass(slots=True)
class Session:
    """The state after a session's last finished round."""

    prompt_history: PromptHistory
    tokens: int
    """How many tokens of it have KV."""
    chars: int
    handle: KvHandle | None
    rounds: int
    ended_at: float
    prefilled: Mapping[str, CachedPrompt]
    """The latest prompt of this session that each prefill worker had before that round."""
    class_: str = ""
    away: bool = False
    """Whether its KV is on the worker that it left, where only its handle can read it."""
    prefilled_by: str = ""
    """The prefill worker of that round, if it had one."""
    prefilled_tokens: int = 0
    """The tokens of its prompt. Two fields take a tenth of the memory of a dict with one entry."""
    origin: KvOrigin | None = None
    """Where its KV is without a handle, until its first round here."""
    returns: ReturnCounts | None = None
    """When sessions alike return; None once its own return is counted there."""

    @property
    def cached(self) -> Mapping[str, CachedPrompt]:
        """Return the latest prompt of this session that each prefill worker was sent."""
        if not self.prefilled_by:
            return self.prefilled
        return {**self.prefilled, self.prefilled_by: CachedPrompt(self.prefilled_tokens, self.ended_at)}


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The match of a new round: its prefill task, whether its history is intact, and the handle to read it with.

    ``lost`` is the outcome of a handle that cannot serve this round.
    """

    task: PrefillTask
    later: bool
    continues: bool
    handle: KvHandle | None = None
    lost: Outcome | None = None
    spare: KvHandle | None = None
    """A handle that is good, but not for this round."""
    gap_s: float | None = None
    prefilled: Mapping[str, CachedPrompt] = field(default_factory=lambda: _NOWHERE)
    index: int = 0
    """How many rounds of the session were served."""
    away: bool = False
    """Whether the history is on a worker that the session left: it is read with the handle, or recomputed."""
    forgone: int = 0
    """Tokens of history that are recomputed: on a worker that the session left, or dropped by the engine."""
    below: Mapping[str, int] = field(default_factory=lambda: _IN_MEMORY)
    """Tokens of history that the engine has to load, by tier."""
    origin: KvOrigin | None = None
    """The worker that has the history without a handle: it can prefill the round, and this one read all KV from it."""

    def evicted(self, kept: int) -> "PrefixMatch":
        """Return the match of a round of whose history the engine keeps so many tokens: the rest is new to it."""
        gone = self.task.history - kept
        return replace(self, task=PrefillTask(kept, self.task.increment + gone), forgone=self.forgone + gone)

    def loaded(self, below: Mapping[str, int]) -> "PrefixMatch":
        """Return the match of a round of whose history so many tokens have to be loaded from tiers."""
        task = PrefillTask(self.task.history, self.task.increment, sum(below.values()))
        return replace(self, task=task, below=below)

    def prefilled_last(self, last: LastPrefill) -> "PrefixMatch":
        """Return the match of a round whose session is unknown here, but for where its last prompt was prefilled."""
        if self.prefilled or self.task.history:
            return self
        return replace(self, prefilled={last.worker: CachedPrompt(last.tokens, last.at)})

    def recomputed(self) -> "PrefixMatch":
        """Return the match of a round whose history on the previous worker cannot be read: all is computed here."""
        task = PrefillTask(0, self.task.history + self.task.increment)
        return replace(
            self, task=task, handle=None, spare=self.handle, lost="superseded", away=False, forgone=self.task.history
        )


RecomputeReason = Literal["moved", "evicted", "history_changed", "handle_expired", "no_handle", "not_read"]


def recompute_reason(match: PrefixMatch, *, remote: bool, read: bool) -> RecomputeReason:
    """Return why history tokens of a round were computed again.

    ``remote``: a prefill worker computed them; ``read``: it read history through the session's handle.
    """
    if match.forgone or match.away:
        return "moved"
    if not remote:
        return "evicted"
    if match.lost == "history_changed":
        return "history_changed"
    if match.lost == "expired":
        return "handle_expired"
    if match.handle is None:
        return "no_handle"
    return "evicted" if read else "not_read"
