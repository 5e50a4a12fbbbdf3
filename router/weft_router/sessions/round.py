"""The state of one round in a decode sidecar: its request, its session's prefix match, and its progress."""

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
    """Whether it deviated from its decision, so that its TTFT must not be compared with the prediction."""
    cached_here: bool = False
    """Whether its prompt was put into the prefix cache of its decode engine."""
    expected_cached: int | None = None
    """Tokens of its prompt that the decode engine will find cached, by KV events; None where they do not say."""
    delayed_s: float = 0.0
    latency: SessionLatency = field(default_factory=SessionLatency)
    route: str = "local"
    reason: str = ""
    prefill_worker: str = ""
    first_at: float | None = None
    first_seen: bool = True
    """Whether its first token was seen; that of an answer in one piece is estimated."""
    prefilled_at: float | None = None
    """When the prefill leg beside its decode leg ended; infinite while it runs, None for legs one after the other."""
    taken: bool = False
    """Whether the decode engine has made its first token, so it has read the prefilled KV."""
    show: Callable[[bytes], None] | None = None
    """Sends the client the prefill's token, while both legs run and nothing was sent yet."""
    facts: dict[str, object] = field(default_factory=dict)
    deaths: int = 0
    """Engines that died while they worked on this request."""

    @property
    def phase(self) -> str:
        """Return ``first`` for an initial prefill, ``later`` for an incremental one."""
        return "later" if self.prefix_match.later else "first"


@dataclass(frozen=True, slots=True)
class PrefilledKv:
    """The result of a remote prefill: what the decode engine needs to read it, and how much history was reused."""

    worker: str
    result: PrefillResult
    prompt_tokens: int
    cached_tokens: int | None
    read_tokens: int
    """Tokens of the handle that was sent; 0 when the prefill computed everything or used its own cache."""
