"""What is known of a session between two rounds, and what its next round means by it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from weft_core.policies.snapshot import PrefillTask
from weft_router.engines.handles import KvHandle, Outcome
from weft_router.mypyc_compat import mypyc_attr
from weft_router.openai.prompt_history import PromptHistory


class CachedPrompt(NamedTuple):
    """A prompt that a prefill worker computed or read: its tokens, and when, on the monotonic clock."""

    tokens: int
    at: float


_NOWHERE: Final[Mapping[str, CachedPrompt]] = {}


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
    """Whether its KV is on another worker, which it left: only its handle leads there."""
    prefilled_by: str = ""
    """The prefill worker of that round, if it had one."""
    prefilled_tokens: int = 0
    """The tokens of its prompt. Beside the others they take a tenth of what a dict of these two would."""

    @property
    def cached(self) -> Mapping[str, CachedPrompt]:
        """Return the latest prompt of this session that each prefill worker was sent."""
        if not self.prefilled_by:
            return self.prefilled
        return {**self.prefilled, self.prefilled_by: CachedPrompt(self.prefilled_tokens, self.ended_at)}


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What a new round means: its prefill task, whether its history is intact, and the handle to read it by.

    ``lost`` says what became of a handle that cannot serve this round.
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
    """Whether the history is on a worker that the session has left: it is read by the handle, or computed anew."""
    forgone: int = 0
    """Tokens of history that were on a worker that the session has left, and are computed anew."""

    def recomputed(self) -> "PrefixMatch":
        """Return what the round means when its history elsewhere cannot be read: all of it is computed here."""
        task = PrefillTask(0, self.task.history + self.task.increment)
        return replace(
            self, task=task, handle=None, spare=self.handle, lost="superseded", away=False, forgone=self.task.history
        )
