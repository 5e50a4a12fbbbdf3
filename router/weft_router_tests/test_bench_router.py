"""The router's bench: its arithmetic and its page, and one tiny run of the compiled engine and client."""

import json
import math
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from bench.duties import PARTS
from bench.router import compiled, page
from bench.router.compiled import BenchError, compiler
from bench.router.figures import BY_KEY, PEERS, STREAMS_ONLY, WEFT, Figure, Results, aim, met, missed, shown
from bench.router.load import Load, read
from bench.router.measures import MEASURES, sample
from bench.router.page import GIVES, keys_of, table, text
from bench.router.processes import cores, cpu_seconds
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
REPORT = {
    "requests": 900,
    "errors": 0,
    "unfinished": 0,
    "events": 0,
    "seconds": 3.0,
    "peak": 0,
    "latency_us": [100, 200, 300, 400],
    "first_error": "",
}


def results(weft: float, *peers: float, key: str = "requests_core") -> Results:
    found = Results()
    for name, value in zip((WEFT, *PEERS), (weft, *peers), strict=False):
        found.add(name, {key: value})
    return found


def told(**changed: object) -> str:
    return json.dumps({**REPORT, **changed})


def test_a_ratio_is_taken_of_the_better_peer_by_medians() -> None:
    found = Results()
    for weft, first, second in ((10.0, 3.0, 4.0), (30.0, 1.0, 4.5), (20.0, 2.0, 100.0)):
        found.add(WEFT, {"requests_core": weft})
        found.add(PEERS[0], {"requests_core": first})
        found.add(PEERS[1], {"requests_core": second})
    assert found.ratio(BY_KEY["requests_core"]) == 20.0 / 4.5


def test_the_cheaper_peer_is_the_better_one_of_a_cost() -> None:
    found = results(90.0, 200.0, 100.0, key="request_us")
    found.add(WEFT, {"sidecar_us": 150.0})
    assert found.ratio(BY_KEY["request_us"]) == 0.9
    assert found.ratio(BY_KEY["sidecar_us"]) == 1.5
    assert met(BY_KEY["sidecar_us"], found) is False


@pytest.mark.parametrize(
    ("found", "reached"),
    [
        (results(14.0, 10.0, 8.0), True),
        (results(13.9, 10.0, 8.0), False),
        (results(14.0), None),
        (results(math.nan, 10.0), None),
    ],
)
def test_an_aim_holds_only_where_it_was_measured(found: Results, reached: bool | None) -> None:
    assert met(BY_KEY["requests_core"], found) is reached


def test_every_aim_that_is_not_reached_is_named() -> None:
    found = results(13.0, 10.0)
    found.add(WEFT, {"rss_mb": 120.0})
    sentences = missed(found, ["requests_core", "request_us", "rss_mb", "held"])
    assert [sentence.split(":")[0] for sentence in sentences] == [
        BY_KEY[key].name for key in ("requests_core", "rss_mb", "held")
    ]
    assert "1.30 x" in sentences[0]
    assert "not measured" in sentences[2]
    assert "no peer" in missed(results(20.0), ["requests_core"])[0]


@given(st.floats(0.001, 1e9), st.floats(0.001, 1e9))
def test_an_aim_is_missed_or_reached_and_never_both(value: float, peer: float) -> None:
    found = results(value, peer)
    assert bool(missed(found, ["requests_core"])) is not met(BY_KEY["requests_core"], found)


def test_values_are_shown_with_three_digits() -> None:
    figure = Figure("x", "x", "ms")
    assert [shown(v, figure) for v in (0.12345, 99.96, 12345.6, math.nan)] == ["0.123 ms", "100 ms", "12,346 ms", "-"]
    assert aim(BY_KEY["requests_core"]) == "≥ 1.4 x"
    assert aim(BY_KEY["added_p50_ms"]) == "≤ 0.3 ms"


def test_a_report_with_any_wrong_answer_is_refused() -> None:
    found = read(told(), cpu_s=1.5, rss_mb=3.0)
    assert (found.busy, found.per_core(900), found.each_us(1000)) == (0.5, 600.0, 1500.0)
    for changed in ({"errors": 1}, {"unfinished": 2}):
        with pytest.raises(BenchError, match="mixed up"):
            read(told(**changed, first_error="mixed up"), cpu_s=1.0, rss_mb=0.0)
    with pytest.raises(BenchError, match="requests"):
        read(told(requests=None), cpu_s=1.0, rss_mb=0.0)


def test_the_client_gets_every_field_of_a_load() -> None:
    words = Load(connections=7, stream=True, rate=200.0).words(1234, "secret")
    pairs = dict(pairwise(words))
    assert (pairs["--connections"], pairs["--rate"], pairs["--port"], pairs["--key"]) == (
        "7",
        "200.0",
        "1234",
        "secret",
    )
    assert "--stream" in words
    assert "--hold" not in words


def test_samples_are_summed_over_labels_and_no_other_metric() -> None:
    metrics = '# TYPE a_sum\na_sum 1\na_sum{x="1"} 2 # {trace_id="9"} 5\na_sum_total 40\nb_a_sum 50\n'
    assert sample(metrics, "a_sum") == 3.0
    assert sample(metrics, "absent") == 0.0


def test_a_page_tells_what_is_missing_and_what_was_missed() -> None:
    found = results(13.0, 10.0)
    found.missing[PEERS[1]] = "the index cannot be reached"
    found.failures.append("Weft, streams, round 1: two answers were wrong")
    written = text(
        found, keys_of(["requests", "processes"]), contenders=(WEFT, *PEERS), how="By hand.", engines="two", rounds=1
    )
    named = written.split("## Sessions named by a header")[1]
    row = next(line for line in named.splitlines() if line.startswith("| requests per core and second"))
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "requests per core and second, 1/s", "13", "10", "not available", "1.30 x", "≥ 1.4 x MISSED",
    ]  # fmt: skip
    assert "not available: the index cannot be reached" in written
    assert "Failed: Weft, streams" in written
    assert "* two processes against one, a core each: not measured" in written


def test_a_page_without_weft_has_no_aims() -> None:
    written = text(results(math.nan, 10.0), keys_of(["requests"]), contenders=PEERS, how="", engines="", rounds=1)
    assert "MISSED" not in written
    assert "Aims" not in written


def test_every_measure_gives_known_figures_and_each_figure_has_one() -> None:
    given_ = [key for keys in GIVES.values() for key in keys]
    assert sorted(given_) == sorted(key for key in BY_KEY if not key.startswith(STREAMS_ONLY))
    assert {key.removeprefix(STREAMS_ONLY) for key in BY_KEY} == set(given_)
    assert set(MEASURES) < set(GIVES)
    assert table(["a"], [["b"]]) == "| a |\n| --- |\n| b |\n"
    assert page.machine()


def test_router_and_load_are_kept_apart_where_there_are_two_cores() -> None:
    one = cores()
    assert bool(set(one.router) & set(one.load)) is (len(os.sched_getaffinity(0)) < 2)


def test_without_a_compiler_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(BenchError, match="apt-get install gcc"):
        compiler()


def test_a_refused_source_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", "false")
    with pytest.raises(BenchError, match=r"refuses engine\.c"):
        compiled.program("engine")


@pytest.mark.component
@pytest.mark.alone
def test_cpu_time_counts_children_that_run_and_those_that_ended() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    last = f"subprocess.run([sys.executable, '-c', {burn!r}]); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); {last}"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as parent:
        try:
            deadline = time.monotonic() + 15
            while (used := cpu_seconds([parent.pid])) < 0.55 and time.monotonic() < deadline:
                time.sleep(0.02)
            assert used >= 0.55
        finally:
            parent.kill()


@pytest.mark.component
@pytest.mark.alone
def test_the_bench_runs_with_the_bare_proxy() -> None:
    try:
        compiler()
    except BenchError:
        pytest.skip("there is no C compiler")
    done = subprocess.run(
        [sys.executable, "-m", "bench.router", "--tiny", "--routers=bare", "--only=requests,sessions,long,events"],
        cwd=ROOT, capture_output=True, text=True, timeout=220, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {line.split("|")[1].strip(): line.split("|")[2].strip() for line in done.stdout.splitlines() if "|" in line}
    assert rows["requests that took both legs, %"] == "100"
    assert float(rows["requests per core and second, 1/s"].replace(",", "")) > 0
    assert float(rows["events of eager streams per core and second, 1/s"].replace(",", "")) > 0


@pytest.mark.component
@pytest.mark.alone
def test_what_the_bench_started_ends_with_it_even_when_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom bench.router.processes import cores, start\n"
        "started = start('sleeper', ['sleep', '60'], on=cores().load, log=Path(sys.argv[1]))\n"
        "print(started.popen.pid, flush=True)\ntime.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as bench:
        assert bench.stdout is not None
        below = Path("/proc") / bench.stdout.readline().strip()
        deadline = time.monotonic() + 15
        while b"sleep" not in (below / "comm").read_bytes() and time.monotonic() < deadline:
            time.sleep(0.02)
        bench.kill()
    while below.exists() and "Z" not in (below / "stat").read_text().rpartition(")")[2][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.component
def test_the_bench_of_a_whole_round_finds_both_legs() -> None:
    argv = [sys.executable, "-m", "bench.duties", "256"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[1:]] == [*PARTS, "a request"]
