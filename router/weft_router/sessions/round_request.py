"""What a front gives a decode worker to do: a checked request of a known session."""

from dataclasses import dataclass, field

from weft_router.openai.inference import Inference
from weft_router.openai.prompt_history import PromptHistory
from weft_router.openai.reply import Reply
from weft_router.telemetry.tracing import Trace


@dataclass(slots=True)
class RoundRequest:
    """One round to be served; ``started`` is on the monotonic clock, ``facts`` goes into the access line."""

    id: str
    session: str
    tenant: str
    inference: Inference
    started: float
    facts: dict[str, object] = field(default_factory=dict)
    class_: str = "default"
    spans: Trace | None = None
    trace: str = ""
    """32 hexadecimal digits that tie the round's metrics, lines and spans together."""
    local_only: bool = False
    """Whether its prefill must not go to prefill workers: degraded under pressure."""
    cap: int | None = None
    """Most tokens of the answer: bounded under pressure."""
    response_id: str | None = None
    """The id that a response of the Responses API gets."""
    keep_ids: bool = False
    """Whether a coordinator wants the token ids of the stream, to go on with it elsewhere should this worker die."""
    resumed: Reply | None = None
    """What the client has of a stream that broke elsewhere and goes on here."""
    deaths: int = 0
    """Engines that ended while they worked on this request."""
    previous_worker: str = ""
    """The worker that had the session until now, where it may still be asked for it."""
    prompt_history: PromptHistory | None = None
    """The request's prompt history where the front had to make it already."""
