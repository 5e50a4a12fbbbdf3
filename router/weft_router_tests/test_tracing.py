"""Traces: whose they are, which rounds have one, what they say, and that a collector in trouble costs nobody."""

import asyncio
from collections.abc import Iterator
from time import monotonic, time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.snapshot import Decision, PrefillTask
from weft_router.config import ConfigError
from weft_router.telemetry import otlp, tracing
from weft_router.telemetry.decision_log import DecisionLog
from weft_router.telemetry.id_generator import IdGenerator
from weft_router.telemetry.metrics import Metrics
from weft_router.telemetry.otlp import Exporter
from weft_router.telemetry.tracing import Tracer, body_of, parse
from weft_router_tests.canary import KEY, PROMPT, TOKEN, assert_no_secrets
from weft_router_tests.collector import Collector, collecting

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def tracer(ratio: float = 1.0, *, front: bool = True) -> Tracer:
    return Tracer(ratio=ratio, front=front, metrics=Metrics())


@pytest.mark.parametrize("header", [PARENT, PARENT[:-2] + "ff", f"cc-{TRACE}-{SPAN}-01-what-comes-later"])
def test_a_well_formed_parent_is_followed(header: str) -> None:
    assert parse(header) == (TRACE, SPAN, True)


def test_a_parent_that_was_not_sampled_is_not() -> None:
    assert parse(PARENT[:-2] + "00") == (TRACE, SPAN, False)
    assert tracer().begin(PARENT[:-2] + "00", "f" * 32) is None


@pytest.mark.parametrize(
    "header",
    [
        None, "", "00", f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01",
        PARENT.upper(), PARENT + "-more", f" {PARENT}", f"{PARENT}\n", f"{PARENT},{PARENT}",
        f"00-{TRACE[:-1]}-{SPAN}-01", f"00-{TRACE}-{SPAN}-1",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 300}", PARENT.replace("0", "٠"), PROMPT, KEY,
    ],
)  # fmt: skip
def test_a_malformed_parent_leaves_no_trace_of_itself(header: str | None) -> None:
    assert parse(header) is None
    trace = tracer().begin(header, "e" * 32)
    assert trace is not None
    assert (trace.id, trace.root.parent) == ("e" * 32, "")


@given(st.text(max_size=80))
def test_ids_are_hexadecimal_whatever_a_client_sends(header: str) -> None:
    trace = tracer().begin(header, "e" * 32)
    assert trace is not None
    assert set(trace.id) <= set("0123456789abcdef")
    assert parse(trace.header) == (trace.id, trace.root.id, True)


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 1.0])
def test_the_share_of_sampled_rounds_is_the_ratio(ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "FRONT_RATE", 1e9)
    sampler, ids = tracer(ratio), IdGenerator()
    sampled = sum(sampler.begin(None, ids.next()) is not None for _ in range(4000))
    assert abs(sampled / 4000 - ratio) < 0.04


def test_only_a_front_begins_traces_and_others_follow_it() -> None:
    sidecar = tracer(front=False)
    assert sidecar.begin(None, "e" * 32) is None
    front = tracer()
    above = front.begin(None, "e" * 32)
    assert above is not None
    leg = above.span("relay", worker="d0")
    below = sidecar.begin(leg.header, "f" * 32, name="decode")
    assert below is not None
    assert (below.id, below.root.parent) == (above.id, leg.id)


def test_clients_cannot_have_everything_traced() -> None:
    front = tracer(0.0)
    assert sum(front.begin(PARENT, "e" * 32) is not None for _ in range(2000)) < 150
    sidecar = tracer(0.0, front=False)
    assert all(sidecar.begin(PARENT, "e" * 32) is not None for _ in range(300))


def spans_of(body: object) -> dict[str, dict[str, Any]]:
    shown = orjson.loads(orjson.dumps(body))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    return {span["name"]: span for span in shown}


def values(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in attributes}


def test_a_round_says_where_its_time_went() -> None:
    made = tracer()
    trace = made.begin(PARENT, "e" * 32, path="/v1/chat/completions")
    assert trace is not None
    record = DecisionLog().add(
        1.0, session="s", class_="gold", policy="weft", worker="d0", task=PrefillTask(900, 100),
        decision=Decision("p0", "interference", ttft_s=0.2),
    )  # fmt: skip
    record.ttft = 0.25
    now = monotonic()
    trace.decided(record, now, now + 0.0001)
    trace.record("prefill.queue", now, now + 0.5, queued=3)
    with pytest.raises(RuntimeError), trace.span("prefill.engine", worker="p0", tokens=100, ratio=0.5, kept=True):
        raise RuntimeError(PROMPT)
    trace.span("decode.engine")
    trace.end(status=200, text="x" * 999, nothing=None)
    shown = spans_of(body_of(made.waiting, {"service.name": "weft-router"}))
    assert set(shown) == {"round", "decide", "prefill.queue", "prefill.engine", "decode.engine"}
    assert {span["traceId"] for span in shown.values()} == {TRACE}
    top = shown["round"]
    assert (top["parentSpanId"], top["kind"], top["status"]) == (SPAN, 2, {})
    assert values(top["attributes"])["status"] == "200"
    assert len(values(top["attributes"])["text"]) == tracing.TEXT
    assert "nothing" not in values(top["attributes"])
    assert all(span["parentSpanId"] == top["spanId"] for name, span in shown.items() if name != "round")
    queue = shown["prefill.queue"]
    assert abs(int(queue["endTimeUnixNano"]) - int(queue["startTimeUnixNano"]) - 5e8) < 1e3
    assert abs(int(top["startTimeUnixNano"]) / 1e9 - time()) < 10
    assert values(shown["prefill.engine"]["attributes"]) == {
        "worker": "p0",
        "tokens": "100",
        "ratio": 0.5,
        "kept": True,
    }
    assert shown["prefill.engine"]["status"] == {"code": 2, "message": "RuntimeError"}
    assert shown["decode.engine"]["status"]["message"] == "unfinished"
    (event,) = shown["decide"]["events"]
    found = values(event["attributes"])
    assert (found["weft.chosen"], found["weft.reason"], found["weft.observed_ttft"]) == ("p0", "interference", 0.25)
    assert_no_secrets(orjson.dumps(body_of(made.waiting, {})))


def test_spans_that_nobody_fetches_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MOST", 10)
    metrics = Metrics()
    made = Tracer(ratio=1.0, front=True, metrics=metrics)
    for _ in range(8):
        trace = made.begin(None, "e" * 32)
        assert trace is not None
        trace.span("relay").end()
        trace.end()
    assert len(made.waiting) == 10
    assert metrics.spans.labels("dropped").value == 6


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as server:
        yield server


def filled(metrics: Metrics, rounds: int) -> Tracer:
    made = Tracer(ratio=1.0, front=True, metrics=metrics)
    for _ in range(rounds):
        trace = made.begin(None, "e" * 32)
        assert trace is not None
        trace.end()
    return made


def counts(metrics: Metrics) -> tuple[float, float]:
    return metrics.spans.labels("exported").value, metrics.spans.labels("dropped").value


@pytest.mark.component
async def test_spans_reach_the_collector_in_batches(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "EVERY_S", 0.01)
    monkeypatch.setattr(otlp, "BATCH", 40)
    monkeypatch.setattr(otlp, "FIRST_REST_S", 0.01)
    collector.statuses = [503, 429, 200]
    metrics = Metrics()
    made = filled(metrics, 90)
    env = {"OTEL_EXPORTER_OTLP_HEADERS": f"x-api-key={KEY}, X%2DTenant=a%2Cb"}
    exporter = Exporter(
        made, collector.url + "/otel", resource={"service.name": "weft-router"}, metrics=metrics, env=env
    )
    task = asyncio.create_task(exporter.run())
    end = monotonic() + 10
    while counts(metrics)[0] < 90:
        assert monotonic() < end
        await asyncio.sleep(0.01)
    task.cancel()
    await exporter.close()
    assert counts(metrics) == (90, 0)
    assert [len(body["resourceSpans"][0]["scopeSpans"][0]["spans"]) for *_, body in collector.got] == [
        40,
        40,
        40,
        40,
        10,
    ]
    path, headers, body = collector.got[0]
    assert path == "/otel/v1/traces"
    assert (headers["x-api-key"], headers["X-Tenant"], headers["Content-Type"]) == (KEY, "a,b", "application/json")
    assert body["resourceSpans"][0]["resource"]["attributes"] == [
        {"key": "service.name", "value": {"stringValue": "weft-router"}}
    ]


@pytest.mark.component
async def test_what_the_collector_refuses_is_dropped_and_said_once(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.statuses = [400]
    metrics = Metrics()
    made = filled(metrics, 3)
    env = {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer {TOKEN}"}
    exporter = Exporter(made, collector.url, resource={}, metrics=metrics, env=env)
    assert await exporter.send()
    made.waiting += filled(metrics, 2).waiting
    assert await exporter.send()
    await exporter.close()
    assert counts(metrics) == (0, 5)
    assert [(r.getMessage(), r.__dict__["status"]) for r in caplog.records] == [("spans_not_exported", 400)]
    assert_no_secrets(caplog.text + str([record.__dict__ for record in caplog.records]))


async def test_without_a_collector_spans_wait_and_the_end_is_quick(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    made = filled(metrics, 3)
    exporter = Exporter(made, "http://127.0.0.1:9", resource={}, metrics=metrics, env={})
    assert not await exporter.send()
    assert len(made.waiting) == 3
    await asyncio.wait_for(exporter.close(), 8)
    assert (made.waiting, counts(metrics)) == ([], (0, 3))
    assert caplog.records[0].__dict__["status"] == "no answer"


@pytest.mark.parametrize("text", ["key=a%0d%0ab: c", "k%0aey=1", "k%20ey=1", "key=ünïcode"])
def test_headers_that_no_request_can_hold_are_refused_unquoted(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^OTEL_EXPORTER_OTLP_HEADERS: a name or value has characters"):
        Exporter(
            tracer(), "https://collector:4318", resource={}, metrics=Metrics(), env={"OTEL_EXPORTER_OTLP_HEADERS": text}
        )
