"""The request of a round as a front passes it to a decode worker: validated, with its session."""

from dataclasses import dataclass, field

from weft_router.openai.identity import scope_of
from weft_router.openai.inference import Inference
from weft_router.openai.prompt_history import PromptHistory
from weft_router.openai.reply import Reply
from weft_router.state.bindings import LastPrefill
from weft_router.telemetry.tracing import Trace


@dataclass(slots=True)
class RoundRequest:
    """One round to serve; ``started`` is on the monotonic clock, ``facts`` are for the access log."""

    id: str
    session: str
    tenant: str
    inference: Inference
    started: float
    facts: dict[str, object] = field(default_factory=dict)
    class_: str = "default"
    spans: Trace | None = None
    trace: str = ""
    """32 hexadecimal digits that identify the round in metrics, logs and spans."""
    local_only: bool = False
    """Whether its prefill must not go to prefill workers, because its class is degraded under load."""
    cap: int | None = None
    """Largest number of answer tokens under load."""
    response_id: str | None = None
    """The id that a response of the Responses API gets."""
    keep_ids: bool = False
    """Whether a coordinator needs the token ids of the stream, to resume it if this worker dies."""
    resumed: Reply | None = None
    """What the client has of a stream that is resumed here."""
    deaths: int = 0
    """Engines that died while they worked on this request."""
    retried: bool = False
    """Whether another worker took it on before, so that it is no further arrival."""
    previous_worker: str = ""
    """The session's previous worker, if the session can be fetched from it."""
    last_prefill: LastPrefill | None = None
    """Where the session's prompt was prefilled last, if it comes from another worker, which may be lost."""
    prefilled_by: str = ""
    """The prefill worker of this round, once it is served."""
    has_fallback: bool = False
    """Whether another service is asked to serve it where this one is overloaded."""
    prompt_history: PromptHistory | None = None
    """The request's prompt history, if the front has computed it already."""

    @property
    def scope(self) -> str:
        """Return within what its session and its cached prefixes count."""
        return scope_of(self.tenant, self.inference.adapter)
