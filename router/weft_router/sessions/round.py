"""One round on its way through a decode sidecar: what was asked, what is known of its session, what happened so far."""

from collections.abc import Callable
from dataclasses import dataclass, field

from weft_core.policies.snapshot import Decision
from weft_router.engines.adapter import EngineRequest, PrefillResult
from weft_router.openai.inference import Inference
from weft_router.openai.prompt_history import PromptHistory
from weft_router.openai.reply import Reply
from weft_router.sessions.session import PrefixMatch
from weft_router.telemetry.decision_log import DecisionRecord
from weft_router.telemetry.session_latency import SessionLatency
from weft_router.telemetry.tracing import Trace
from weft_router.workers.scheduling_priority import DEFAULT_PRIORITY, SchedulingPriority


@dataclass(slots=True)
class Round:
    """A request, its session and its facts; times are seconds of the monotonic clock."""

    id: str
    session: str
    inference: Inference
    prompt_history: PromptHistory
    prefix_match: PrefixMatch
    started: float
    engine_request: EngineRequest
    export: bool
    resumed: Reply | None = None
    class_: str = "default"
    trace: str = ""
    spans: Trace | None = None
    scheduling: SchedulingPriority = DEFAULT_PRIORITY
    decision: Decision | None = None
    record: DecisionRecord | None = None
    retried: bool = False
    """Whether it went another way than decided: its TTFT says nothing of the prediction."""
    latency: SessionLatency = field(default_factory=SessionLatency)
    route: str = "local"
    reason: str = ""
    prefill_worker: str = ""
    first_at: float | None = None
    taken: bool = False
    """Whether the decode engine's own first token came: KV that was prefilled for it elsewhere is read then."""
    show: Callable[[bytes], None] | None = None
    """Shows the client the prefill's token, where both legs are under way together and nothing was sent yet."""
    facts: dict[str, object] = field(default_factory=dict)
    deaths: int = 0
    """Engines that ended while they worked on this request."""

    @property
    def phase(self) -> str:
        """Return ``first`` for an initial prefill, ``later`` for an incremental one."""
        return "later" if self.prefix_match.later else "first"


@dataclass(frozen=True, slots=True)
class PrefilledKv:
    """The outcome of a remote prefill: what the decode engine needs, and how much history was not computed anew."""

    worker: str
    result: PrefillResult
    prompt_tokens: int
    cached_tokens: int | None
    read_tokens: int
    """Tokens of the handle that was offered; 0 when the prefill computed everything or used its own cache."""
