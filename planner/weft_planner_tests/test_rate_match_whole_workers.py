"""Whole workers of a number of GPUs: against every layout tried in turn, and the limits of a service."""

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft_cli as cli
from weft_core.layouts import PlannedGroup
from weft_planner.rate_match import ProfiledServer, RoundShape, Servers, WholeWorkers, best_whole_workers
from weft_planner.rate_match.curves import aggregated_point, context_prefills, generation_point
from weft_planner.rate_match.queueing import MOST_BUSY, Prefills, waits
from weft_planner.rate_match.whole_workers import BUSY, FULL
from weft_planner.request.reading import Request, request_of
from weft_planner_tests.test_cli import SERVICE
from weft_planner_tests.test_rate_match import profile

COUNT = 400
DEGREES = (1, 2)


def asked(gpus: int = 8, *, ttft: float = 1.0, itl: float = 0.05, **parts: Any) -> Request:
    pool = {"name": "a", "gpuType": "nvidia-h100", "gpusPerNode": 8, "degrees": [*DEGREES]}
    return request_of(
        {
            "model": {"name": "m"},
            "slo": {"ttft": ttft, "itl": itl},
            "workload": {"preset": "ampd/gaia", "arrivalRate": 1.0},
            "capacity": {"gpus": gpus, "pools": [pool]},
            **parts,
        }
    )


def shape(answer: float = 100.0, history: float = 0.0) -> RoundShape:
    one = np.full(COUNT, 1.0)
    arrivals = np.random.default_rng(7).exponential(size=COUNT)
    return RoundShape(history=history * one, increment=1000 * one, tokens=answer * one, gap=0 * one, arrivals=arrivals)


def servers(per_chunk_token: float = 8e-5) -> Servers:
    every = [ProfiledServer(profile(per_chunk_token=per_chunk_token), n) for n in DEGREES]
    return Servers(every, every, every)


def most_disaggregated(request: Request, rounds: RoundShape) -> float:
    """Return the most rounds per second of any two groups, at any load and concurrency."""

    def context(degree: int, workers: int) -> float:
        prefills = context_prefills(by_degree[degree], rounds, bidirectional=True)
        held = [
            prefills.rounds_per_s(u / 100) * workers
            for u in range(1, round(100 * BUSY) + 1)
            if prefills.ttft_s(u / 100, rounds, percentile=95, queues=workers) <= request.slo.ttft
        ]
        return max(held, default=0.0)

    def generation(degree: int) -> float:
        points = [generation_point(by_degree[degree], rounds, n, waiting_s=request.slo.ttft) for n in range(1, 96)]
        return max((p.rounds_per_s for p in points if p is not None and p.itl_s <= request.slo.itl), default=0.0)

    gpus = request.capacity.gpus
    by_degree = {n: ProfiledServer(profile(), n) for n in DEGREES}
    found = [0.0]
    for n, m in product(DEGREES, DEGREES):
        one = generation(m)
        for count in range(1, gpus // n + 1):
            left = (gpus - count * n) // m
            if left and one:
                found.append(min(context(n, count), FULL * left * one))
    return max(found)


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 8), st.floats(0.1, 1.0), st.floats(0.012, 0.08), st.sampled_from([20.0, 100.0, 400.0]))
def test_the_best_is_what_trying_every_layout_finds(gpus: int, ttft: float, itl: float, answer: float) -> None:
    request = asked(gpus, ttft=ttft, itl=itl, engine={"layouts": ["disaggregated"]})
    rounds = shape(answer)
    found = best_whole_workers(servers(), rounds, request)
    assert (0.0 if found is None else found.rounds_per_s) == pytest.approx(most_disaggregated(request, rounds))


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 24), st.floats(0.05, 2.0), st.floats(0.012, 0.08), st.sampled_from([20.0, 400.0]))
def test_what_is_found_holds_the_slo_on_the_gpus(gpus: int, ttft: float, itl: float, answer: float) -> None:
    found = best_whole_workers(servers(), shape(answer), asked(gpus, ttft=ttft, itl=itl))
    if found is None:
        return
    assert found.gpus <= gpus
    assert found.ttft_s <= ttft
    assert found.generation.itl_s <= itl
    assert found.tokens_per_s_gpu == pytest.approx(found.rounds_per_s * answer / gpus)
    assert found.rounds_per_s <= sum(g.replicas for g in found.groups if g.role == "decode") * (
        found.generation.rounds_per_s + 1e-9
    )


def test_more_gpus_never_carry_less() -> None:
    carried = [found.rounds_per_s for n in range(2, 20) if (found := best_whole_workers(servers(), shape(), asked(n)))]
    assert len(carried) == 18
    assert carried == sorted(carried)


def test_a_worker_that_does_both_holds_both_thresholds() -> None:
    only = {"layouts": ["colocated"]}

    def found(ttft: float) -> WholeWorkers:
        one = best_whole_workers(servers(), shape(), asked(engine=only, ttft=ttft))
        assert one is not None
        return one

    free, tight = found(1.0), found(0.09)
    assert free.kind == tight.kind == "colocated"
    assert free.context is None
    assert tight.rounds_per_s < free.rounds_per_s
    assert tight.ttft_s <= 0.09
    assert best_whole_workers(servers(per_chunk_token=0.0), shape(), asked(engine=only)) is None, "nothing is known"
    for point in (free, tight):
        server = ProfiledServer(profile(), point.generation.degree)
        assert aggregated_point(server, shape(), point.generation.concurrency) == point.generation


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_bounds_of_a_service_are_kept(role: str) -> None:
    request = asked(engine={"layouts": ["disaggregated"]}, bounds={role: {"max": 1}})
    found = best_whole_workers(servers(), shape(), request)
    assert found is not None
    assert [group.replicas for group in found.groups if group.role == role] == [1]


def test_workers_lie_within_nodes_and_pools() -> None:
    pools = [
        {"name": "a", "gpuType": "nvidia-h100", "gpusPerNode": 8, "gpus": 2, "degrees": [2], "roles": ["prefill"]},
        {"name": "b", "gpuType": "nvidia-h100", "gpusPerNode": 8, "nodes": [1, 1, 1], "degrees": [1, 2]},
    ]
    found = best_whole_workers(
        servers(), shape(), asked(capacity={"gpus": 8, "pools": pools}, engine={"layouts": ["disaggregated"]})
    )
    assert found is not None
    assert found.groups == (PlannedGroup("prefill", 2, 1, "a"), PlannedGroup("decode", 1, 3, "b"))


@given(st.integers(1, 6), st.lists(st.floats(0.01, 3.0), min_size=1, max_size=30))
def test_prompts_wait_until_a_batch_is_free(count: int, distances: list[float]) -> None:
    busy = np.full(len(distances), 1.0)
    arrived = np.cumsum(distances)
    starts = arrived + waits(busy, np.array(distances), count)
    for k, start in enumerate(starts.tolist()):
        assert start >= arrived[k]
        in_use = int(((starts[:k] <= start) & (starts[:k] + 1.0 > start + 1e-9)).sum())
        assert in_use < count
        if start > arrived[k] + 1e-9:  # whoever waits starts as one ends
            assert np.abs(starts[:k] + 1.0 - start).min() < 1e-9


def test_workers_with_one_queue_take_more_load() -> None:
    prefills = Prefills(busy=np.full(4000, 0.1), answered=np.full(4000, 0.1), batches=1)
    rounds = replace(shape(), arrivals=np.random.default_rng(7).exponential(size=4000))

    def load(workers: int) -> float:
        return (
            prefills.most_load(MOST_BUSY, lambda u: prefills.ttft_s(u, rounds, percentile=95, queues=workers) <= 0.2)
            or 0.0
        )

    assert load(1) < load(4) < load(16) <= MOST_BUSY
    assert prefills.most_load(MOST_BUSY, lambda u: math.inf < u) is None


def test_the_command_says_what_the_gpus_carry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, page = tmp_path / "dis.yaml", tmp_path / "page.html"
    manifest.write_text(SERVICE)
    assert cli.main(["plan", "-f", str(manifest), "--rate-match", "--report", str(page)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert cli.main(["plan", "-f", str(manifest), "--rate-match", "-o", "json"]) == 0
    body = json.loads(capsys.readouterr().out)["rateMatching"]["forCapacity"]
    assert "GPUs: " in shown
    assert f"carries {body['roundsPerSecond']:.3g} rounds a second within the SLO" in shown
    assert body["gpus"] == sum(group["replicas"] * group["degree"] for group in body["groups"])
    assert "in whole workers" in page.read_text()
