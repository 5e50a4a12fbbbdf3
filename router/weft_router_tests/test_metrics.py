"""The metrics: quick to count, read by the library's parsers in both forms, for all processes, documented."""

import asyncio
import math
import re
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_plain

from weft_router.telemetry import instruments
from weft_router.telemetry.exposition import NOTHING, wants_openmetrics
from weft_router.telemetry.instruments import BucketsByClass, Counter, Histogram
from weft_router.telemetry.metrics import SECONDS, Metrics
from weft_router.telemetry.metrics_reference import reference

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.4,*/*;q=0.1"
)
TRACE = "0af7651916cd43dd8448eb211c80319c"


def families(
    metrics: Metrics, *, accept: str = "", place: str = "", others: Mapping[str, bytes] = NOTHING
) -> dict[str, Metric]:
    body, kind = metrics.render(accept, place=place, others=others)
    read = read_openmetrics if kind.startswith("application/openmetrics-text") else read_plain
    found = list(read(body.decode()))
    assert len({family.name for family in found}) == len(found)
    return {family.name: family for family in found}


def sample(family: Metric, name: str, **labels: str) -> float:
    (value,) = [s.value for s in family.samples if s.name == name and s.labels == labels]
    return float(value)


def busy() -> Metrics:
    metrics = Metrics()
    metrics.requests.labels(200, "standalone").inc()
    metrics.requests.labels("200", "standalone").inc()
    metrics.ttft.labels("first", "remote", "gold").mark(0.3, TRACE, monotonic())
    metrics.ttft.labels("first", "remote", "gold").observe(200.0)
    metrics.kv_bytes.labels("prefill_to_decode").inc(12345678.5)
    metrics.state_up.set(True)
    metrics.queue_length.set(3)
    return metrics


def test_the_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), "run: make generate"


def test_every_metric_is_served_under_the_routers_prefix_and_documented() -> None:
    names = [line.split()[2] for line in Metrics().page().decode().splitlines() if line.startswith("# TYPE")]
    assert len(names) > 45
    assert all(name.startswith(("weft_router_", "process_")) for name in names)
    assert all(f"| `{name}` |" in reference() for name in names)


@pytest.mark.parametrize("accept", ["", PROMETHEUS])
def test_a_page_reads_as_what_was_counted(accept: str) -> None:
    found = families(busy(), accept=accept)
    assert sample(found["weft_router_requests"], "weft_router_requests_total", code="200", role="standalone") == 2
    assert (
        sample(found["weft_router_kv_bytes"], "weft_router_kv_bytes_total", direction="prefill_to_decode") == 12345678.5
    )
    assert sample(found["weft_router_state_up"], "weft_router_state_up") == 1
    ttft = found["weft_router_ttft_seconds"]
    labels = {"phase": "first", "route": "remote", "class": "gold"}
    assert sample(ttft, "weft_router_ttft_seconds_count", **labels) == 2
    assert sample(ttft, "weft_router_ttft_seconds_sum", **labels) == 200.3
    assert sample(ttft, "weft_router_ttft_seconds_bucket", **labels, le="0.25") == 0
    assert sample(ttft, "weft_router_ttft_seconds_bucket", **labels, le="0.5") == 1
    assert sample(ttft, "weft_router_ttft_seconds_bucket", **labels, le="+Inf") == 2
    assert found["weft_router_decisions"].type == "counter"  # declared before anything was counted


def test_openmetrics_alone_shows_the_trace_of_a_slow_request() -> None:
    (shown,) = [
        s.exemplar
        for s in families(busy(), accept=PROMETHEUS)["weft_router_ttft_seconds"].samples
        if s.exemplar is not None
    ]
    assert (shown.labels, shown.value) == ({"trace_id": TRACE}, 0.3)
    assert shown.timestamp is not None
    assert abs(float(shown.timestamp) - time()) < 10
    assert TRACE not in busy().page().decode()


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("APPLICATION/OPENMETRICS-TEXT; version=0.0.1", True),
        ("application/openmetrics-text;q=0, text/plain", False),
        ("text/plain", False),
        ("*/*", False),
        ("", False),
        (";;,,q=;application/openmetrics-text", False),
    ],
)
def test_the_form_is_what_the_scraper_asks_for(accept: str, wanted: bool) -> None:
    assert wants_openmetrics(accept) == wanted


def test_a_process_answers_for_its_siblings_too() -> None:
    one, two = busy(), busy()
    two.ttft.labels("later", "local", "gold").mark(0.001, "b" * 32, monotonic())
    two.state_up.set(0)
    two.queue_length.set(math.nan)
    found = families(one, accept=PROMETHEUS, place="0", others={"1": two.dump(), "2": Metrics().dump()})
    for process in ("0", "1"):
        name = "weft_router_requests"
        assert sample(found[name], f"{name}_total", code="200", role="standalone", process=process) == 2
    ttft = found["weft_router_ttft_seconds"]
    gold = {"phase": "first", "route": "remote", "class": "gold"}
    assert sample(ttft, "weft_router_ttft_seconds_count", **gold, process="1") == 2
    assert sample(ttft, "weft_router_ttft_seconds_bucket", **gold, process="1", le="0.5") == 1
    later = {"phase": "later", "route": "local", "class": "gold", "process": "1"}
    assert sample(ttft, "weft_router_ttft_seconds_count", **later) == 1
    assert {s.exemplar.labels["trace_id"] for s in ttft.samples if s.exemplar} == {TRACE, "b" * 32}
    assert [s.value for s in found["weft_router_state_up"].samples] == [1, 0, 0]
    assert [s.value for s in found["weft_router_queue_length"].samples] == [3, 0]  # JSON has no NaN
    assert len(found["process_resident_memory_bytes"].samples) == 3
    assert "process=" not in one.page().decode()


@pytest.mark.parametrize(
    "children",
    [
        b'[["first","remote","gold"],[[1,2],3.0,{}]]',  # fewer buckets
        b'[["first","remote"],[[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1],3.0,{}]]',  # fewer labels
        b'[["first","remote","gold"],3.0]',  # no histogram
        b'[["first","remote","gold"],null]',
    ],
)
def test_a_sibling_of_another_version_does_not_break_the_page(children: bytes) -> None:
    other = b'{"weft_router_ttft_seconds":[' + children + b'],"weft_router_unheard_of":[[[],1.0]]}'
    found = families(busy(), place="0", others={"1": other})
    labels = {"phase": "first", "route": "remote", "class": "gold"}
    assert sample(found["weft_router_ttft_seconds"], "weft_router_ttft_seconds_count", **labels, process="0") == 2
    assert all(s.labels["process"] == "0" for s in found["weft_router_ttft_seconds"].samples)


def test_labels_left_out_are_default_and_too_many_refused() -> None:
    metrics = Metrics()
    metrics.itl.observe(0.02)
    metrics.itl.labels("remote").observe(0.02, 3)
    assert metrics.itl.labels().buckets is metrics.itl.labels("default", "default").buckets
    assert sum(metrics.itl.labels("remote", "default").counts) == 3
    with pytest.raises(ValueError, match="weft_router_itl_seconds: 3 label values for the labels route, class"):
        metrics.itl.labels("a", "b", "c")


def test_a_child_by_its_class_is_that_of_all_labels() -> None:
    metrics = Metrics()
    BucketsByClass(metrics.leg_seconds, "decode").of("gold").mark(0.2, "t", 1.0)
    BucketsByClass(metrics.queue_seconds).of("gold").observe(0.2)
    assert sum(metrics.leg_seconds.labels("decode", "gold").counts) == 1
    assert sum(metrics.queue_seconds.labels("gold").counts) == 1


def test_the_number_of_children_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "MAX_CHILDREN", 3)
    counter = Counter("c", "", ["reason"])
    for k in range(10):
        counter.labels(f"r{k}").inc()
        counter.labels("r0").inc()
    found = {values: child.value for values, child in counter.items()}
    assert found == {("r0",): 11, ("r1",): 1, ("r2",): 1, ("other",): 7}


def test_buckets_must_rise() -> None:
    with pytest.raises(ValueError, match="h: buckets must rise"):
        Histogram("h", "", buckets=(1.0, 1.0))


@given(st.lists(st.tuples(st.floats(0, 300), st.integers(1, 5)), max_size=30))
def test_buckets_hold_the_values_up_to_their_bound(values: list[tuple[float, int]]) -> None:
    histogram = Histogram("h", "", buckets=SECONDS)
    for value, count in values:
        histogram.observe(value, count)
    child = histogram.labels()
    for index, bound in enumerate(SECONDS):
        assert sum(child.counts[: index + 1]) == sum(count for value, count in values if value <= bound)
    assert sum(child.counts) == sum(count for _, count in values)
    assert math.isclose(child.total, sum(value * count for value, count in values), abs_tol=1e-9)
    assert bisect_left(SECONDS, SECONDS[3]) == 3


def test_label_values_cannot_break_the_page() -> None:
    metrics = Metrics()
    hostile = 'a"} 1\nweft_router_requests_total{code="\\'
    metrics.replays.labels(hostile).inc()
    for accept in ("", PROMETHEUS):
        found = families(metrics, accept=accept)
        assert sample(found["weft_router_replays"], "weft_router_replays_total", reason=hostile) == 1


async def test_the_tasks_of_the_loop_are_counted() -> None:
    metrics = Metrics()
    before = sample(families(metrics)["weft_router_tasks"], "weft_router_tasks")
    task = asyncio.create_task(asyncio.sleep(60))
    assert sample(families(metrics)["weft_router_tasks"], "weft_router_tasks") == before + 1
    task.cancel()


def test_whatever_reads_metrics_names_some_that_exist() -> None:
    """Scenarios, chart and pages are searched: a dashboard or an alert on a name nobody serves would stay silent."""
    known = set()
    for metric in Metrics().catalogue:
        known |= {metric.name, f"{metric.name}_total"} if metric.kind == "counter" else {metric.name}
        if metric.kind == "histogram":
            known |= {f"{metric.name}_{part}" for part in ("bucket", "sum", "count")}
    unknown: dict[str, Path] = {}
    read = [
        p for d in ("docs", "charts", "e2e/weft_e2e", "operator/weft_operator", "bench") for p in (ROOT / d).rglob("*")
    ]
    for path in read:
        if path.suffix in (".md", ".yaml", ".yml", ".json", ".tpl", ".py") and path.is_file():
            for name in re.findall(r"\bweft_router_[a-z0-9_]*[a-z0-9]\b", path.read_text(errors="replace")):
                if name not in known and not name.startswith("weft_router_tests"):
                    unknown.setdefault(name, path.relative_to(ROOT))
    assert not unknown
