"""Record where the time of a round went over all hops: OpenTelemetry spans and W3C trace context, for some rounds.

Off, it costs its callers one ``if``; on, a round that is not sampled costs one comparison. There is no sdk underneath:
opentelemetry-sdk with its OTLP exporter is 14 packages (two of them pre-releases), 16 MB of image and 140 ms of start,
for what are 300 lines here and in ``otlp``: spans of one shape, parent-based sampling, JSON over HTTP.

A client's ``traceparent`` is followed when it is well-formed; nothing else that a client says gets into a trace.
"""

import re
from collections.abc import Mapping
from random import getrandbits
from time import monotonic, time
from types import TracebackType
from typing import NamedTuple

from weft_router.telemetry.decision_log import DecisionRecord
from weft_router.telemetry.metrics import Metrics

FRONT_RATE = 100.0
"""Sampled rounds a second at most: a client asks for a trace with each of its requests at no cost of its own."""
MOST = 4096
"""Spans that wait for the collector."""
TEXT = 256
"""Characters of an attribute; the router's own words and names are shorter."""

INTERNAL, SERVER, CLIENT = 1, 2, 3
_KINDS = {
    "relay": CLIENT,
    "prefill.engine": CLIENT,
    "decode.engine": CLIENT,
    "round": SERVER,
    "decode": SERVER,
    "prefill": SERVER,
}
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_SAMPLED = 1

Attribute = str | int | float | bool | None


class TraceParent(NamedTuple):
    """The span that a request belongs to, in whatever process it is."""

    trace_id: str
    span_id: str
    sampled: bool


def parse(header: str | None) -> TraceParent | None:
    """Return the parent that a ``traceparent`` names, None when it is malformed (W3C Trace Context, section 3.2)."""
    found = _PARENT.fullmatch(header) if header is not None and len(header) <= TEXT else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


class Span:
    """A part of a round; times are the monotonic clock's."""

    __slots__ = ("attributes", "began", "ended", "error", "events", "id", "name", "parent", "trace_id")

    def __init__(
        self, trace_id: str, parent: str, name: str, began: float, attributes: Mapping[str, Attribute]
    ) -> None:
        self.trace_id = trace_id
        self.id = f"{getrandbits(64) or 1:016x}"
        self.parent = parent
        self.name = name
        self.began = began
        self.ended: float | None = None
        self.error = ""
        self.attributes: dict[str, Attribute] = dict(attributes)
        self.events: list[tuple[str, float, DecisionRecord]] = []

    @property
    def kind(self) -> int:
        """Return OTLP's number for whether it serves, calls or works within the process."""
        return _KINDS.get(self.name, INTERNAL)

    @property
    def header(self) -> str:
        """Return the ``traceparent`` for a hop that this span waits for."""
        return f"00-{self.trace_id}-{self.id}-01"

    def end(self, *, error: str = "", at: float | None = None, **attributes: Attribute) -> None:
        """End it, once; ``error`` is the reason's word when it failed."""
        if self.ended is None:
            self.ended = monotonic() if at is None else at
            self.error = error
            self.attributes.update(attributes)

    def __enter__(self) -> "Span":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it; of an exception only its type is kept, for its text may quote anything."""
        self.end(error="" if kind is None else kind.__name__)


class Trace:
    """The spans of one sampled round in this process, the first of them for the whole."""

    __slots__ = ("_tracer", "id", "root", "spans")

    def __init__(self, tracer: "Tracer", root: Span) -> None:
        self._tracer = tracer
        self.id = root.trace_id
        self.root = root
        self.spans = [root]

    @property
    def header(self) -> str:
        """Return the ``traceparent`` for a hop that no span of its own stands for."""
        return self.root.header

    def span(self, name: str, *, at: float | None = None, under: Span | None = None, **attributes: Attribute) -> Span:
        """Begin a part of the round."""
        return self._add(name, at, under, attributes)

    def record(self, name: str, began: float, ended: float, *, error: str = "", **attributes: Attribute) -> Span:
        """Add a part whose times are known already."""
        span = self._add(name, began, None, attributes)
        span.end(error=error, at=ended)
        return span

    def _add(self, name: str, at: float | None, under: Span | None, attributes: Mapping[str, Attribute]) -> Span:
        parent = self.root if under is None else under
        span = Span(self.id, parent.id, name, monotonic() if at is None else at, attributes)
        self.spans.append(span)
        return span

    def decided(self, record: DecisionRecord, began: float, ended: float) -> None:
        """Add the decision, with what else could have been chosen."""
        span = self.record("decide", began, ended)
        span.events.append(("decision", ended, record))

    def end(self, *, error: str = "", **attributes: Attribute) -> None:
        """End the round here and hand its spans over; parts that still run end with it."""
        self.root.end(error=error, at=None, **attributes)
        for span in self.spans:
            if span.ended is None:
                span.end(error="unfinished", at=self.root.ended)
        self._tracer.take(self.spans)
        self.spans = []


class Tracer:
    """What samples rounds and keeps their spans until they are exported."""

    def __init__(self, *, ratio: float, front: bool, metrics: Metrics) -> None:
        """Sample ``ratio`` of the rounds that begin here; only a ``front`` begins some, others go by their caller."""
        self._below = int(ratio * 2**64)
        self._front = front
        self._budget = FRONT_RATE
        self._refilled = monotonic()
        self._dropped = metrics.spans.labels("dropped")
        self.waiting: list[Span] = []

    def begin(self, header: str | None, id_: str, *, name: str = "round", **attributes: Attribute) -> Trace | None:
        """Begin the trace of a request, None when it is not sampled.

        ``header`` is the request's ``traceparent``; ``id_`` (32 hex digits) the trace's own id where there is none.
        """
        parent = parse(header) if header is not None else None
        if parent is None:
            # The lower half of the id decides, as in OpenTelemetry's ratio sampler: other samplers agree with it.
            if not self._front or int(id_[16:], 16) >= self._below or not self._affordable():
                return None
            return Trace(self, Span(id_, "", name, monotonic(), attributes))
        if not parent.sampled or (self._front and not self._affordable()):
            return None
        return Trace(self, Span(parent.trace_id, parent.span_id, name, monotonic(), attributes))

    def take(self, spans: list[Span]) -> None:
        """Keep the spans of a round for export; what does not fit is dropped and counted."""
        if len(self.waiting) + len(spans) > MOST:
            self._dropped.inc(len(spans))
        else:
            self.waiting += spans

    def _affordable(self) -> bool:
        now = monotonic()
        self._budget = min(FRONT_RATE, self._budget + (now - self._refilled) * FRONT_RATE)
        self._refilled = now
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        return True


def body_of(spans: list[Span], resource: Mapping[str, Attribute]) -> dict[str, object]:
    """Return an OTLP export request in its JSON form: ids in hex, 64-bit numbers as text."""
    epoch = time() - monotonic()
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": {"name": "weft.router"}, "spans": [_span(span, epoch) for span in spans]}],
            }
        ]
    }


def _span(span: Span, epoch: float) -> dict[str, object]:
    ended = span.began if span.ended is None else span.ended
    body: dict[str, object] = {
        "traceId": span.trace_id,
        "spanId": span.id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": _nanoseconds(epoch + span.began),
        "endTimeUnixNano": _nanoseconds(epoch + max(ended, span.began)),
        "attributes": _attributes(span.attributes),
        "status": {"code": 2, "message": span.error[:TEXT]} if span.error else {},
    }
    if span.parent:
        body["parentSpanId"] = span.parent
    if span.events:
        body["events"] = [
            {"name": name, "timeUnixNano": _nanoseconds(epoch + at), "attributes": _decision(record)}
            for name, at, record in span.events
        ]
    return body


def _decision(record: DecisionRecord) -> list[dict[str, object]]:
    facts = record.facts()
    options = facts.pop("alternatives")
    found = {f"weft.{name}": value for name, value in facts.items() if isinstance(value, str | int | float)}
    if isinstance(options, list):
        for k, option in enumerate(options[:16]):
            found |= {f"weft.alternative.{k}.{name}": value for name, value in option.items()}
    del found["weft.time"]
    return _attributes(found)


def _attributes(attributes: Mapping[str, Attribute]) -> list[dict[str, object]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items() if value is not None]


def _value(value: str | int | float | bool) -> dict[str, object]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": value[:TEXT].encode("utf-8", "replace").decode()}


def _nanoseconds(seconds: float) -> str:
    return str(int(seconds * 1e9))
