"""Resume a stream whose engine was lost: on another worker, or end it if only the end is missing."""

from weft_router.engines.adapter import Adapter
from weft_router.engines.resume import greedy, resume_kinds, resume_method, resume_obstacle
from weft_router.openai.reply import Reply, to_event
from weft_router.rounds.regeneration_writer import RegenerationWriter
from weft_router.rounds.response_writer import ResponseWriter
from weft_router.sessions.round_request import RoundRequest
from weft_router.telemetry.metrics import Metrics

_OBJECTS = {"chat": "chat.completion.chunk", "text": "text_completion"}
_DONE = b"data: [DONE]\n\n"
_REGENERATED = frozenset({"structure", "no-ids"})
"""What keeps a greedy stream from being continued, and not from being generated again."""


class StreamResumer:
    """Decides how a front continues broken streams."""

    def __init__(self, adapter: Adapter, metrics: Metrics) -> None:
        self._kinds = resume_kinds(adapter)
        self._outcomes = metrics.resumes

    def next_writer(
        self, request: RoundRequest, reply: Reply | None, client: ResponseWriter, writer: ResponseWriter
    ) -> ResponseWriter | None:
        """Return the writer of the next attempt, ``writer`` being the last one's; None if the stream cannot go on.

        The request of that attempt says what the client has, if the stream is continued; if it is generated again, the
        attempt is like the first, and the writer removes what the client has.
        """
        if isinstance(writer, RegenerationWriter):
            self._outcomes.labels("regenerated").inc()
            writer.restart()
            return writer
        method = resume_method(request.inference, self._kinds)
        if reply is None or method == "no":
            return None
        reason = resume_obstacle(request.inference, reply) if method != "regenerate" else None
        first = request.resumed is None  # of a stream that was continued, no engine has generated all
        if first and reason in _REGENERATED and greedy(request.inference.body) and not request.inference.wants_ids:
            method, reason = "regenerate", None
        if method == "regenerate" and reply.error:
            reason = "engine-error"
        self._outcomes.labels(reason or ("regenerated" if method == "regenerate" else "resumed")).inc()
        if reason is not None:
            return None
        request.facts["resumed"] = True
        if method == "regenerate":
            request.retried = True
            return RegenerationWriter(client, reply)
        if reply.output_ids is not None:
            reply.output_ids = reply.output_ids[: reply.shown]
        request.resumed = reply
        return writer

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
