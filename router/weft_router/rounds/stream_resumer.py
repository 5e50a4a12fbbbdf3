"""Resume a stream whose engine was lost: on another worker from its token ids, or end it if only the end is missing."""

from weft_router.engines.adapter import Adapter
from weft_router.engines.resume import resumable, resume_kinds, resume_obstacle
from weft_router.openai.reply import Reply, to_event
from weft_router.rounds.response_writer import ResponseWriter
from weft_router.sessions.round_request import RoundRequest
from weft_router.telemetry.metrics import Metrics

_OBJECTS = {"chat": "chat.completion.chunk", "text": "text_completion"}
_DONE = b"data: [DONE]\n\n"


class StreamResumer:
    """Decides how a front continues broken streams."""

    def __init__(self, adapter: Adapter, metrics: Metrics) -> None:
        self._kinds = resume_kinds(adapter)
        self._outcomes = metrics.resumes

    def can_resume(self, request: RoundRequest, reply: Reply | None) -> bool:
        """Return whether a stream may resume on another worker; if so, record in the request what the client has."""
        if reply is None or resumable(request.inference).how not in self._kinds:
            return False
        reason = resume_obstacle(request.inference, reply)
        self._outcomes.labels(reason or "resumed").inc()
        if reason is not None:
            return False
        if reply.output_ids is not None:
            reply.output_ids = reply.output_ids[: reply.shown]
        request.resumed = reply
        request.facts["resumed"] = True
        return True

    def finish_if_complete(self, request: RoundRequest, reply: Reply | None, writer: ResponseWriter) -> bool:
        """End a stream whose engine was lost after the last token, so that only the end is missing; return whether."""
        if reply is None or not self._kinds or reply.finish_reason is None or reply.error or request.inference.n != 1:
            return False
        if request.inference.wants_usage and not reply.completion_tokens:
            ids = reply.ids
            if ids is None:
                return False
            done = len(reply.output_ids or ())
            usage = {"prompt_tokens": len(ids) - done, "completion_tokens": done, "total_tokens": len(ids)}
            head = {**(reply.head or {}), "object": _OBJECTS[reply.kind]}
            writer.write(to_event({**head, "choices": [], "usage": usage}))
        writer.write(_DONE)
        writer.end()
        self._outcomes.labels("finished").inc()
        return True
