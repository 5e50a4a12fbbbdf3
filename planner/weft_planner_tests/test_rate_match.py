"""Rate matching: curves against closed forms, ratios against TensorRT-LLM's own formula, and the command."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft_cli as cli
from weft_core.cost import CostProfile, DecodePiece, DegreeCosts, PrefillPiece, TransferCost
from weft_core.parallelism import degree_of, gpus_of
from weft_planner.rate_match import (
    ContextPoint,
    CurveSource,
    GenerationPoint,
    NoMatch,
    ProfiledServer,
    RateMatching,
    RoundShape,
    Servers,
    aggregated_curve,
    context_curve,
    generation_curve,
    match_rates,
)
from weft_planner.rate_match.matching import LARGEST_SIDE, RateMatch
from weft_planner.report.rate_match import rate_match_page
from weft_planner.request.reading import request_of
from weft_planner.simulation.options import StepLimits
from weft_planner_tests.test_cli import SERVICE

COUNT = 4000
REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = CurveSource("the <cost> profile", False, ["a <remark>"])


def profile(*, kv_capacity: int = 100_000, per_chunk_token: float = 8e-5) -> CostProfile:
    """0.1 s for a prompt of 1,000 tokens at degree 1, half of that at 2; a step is 10 ms and 1 ms a sequence.

    Beside a batch such a prompt adds 80 ms.
    """
    return CostProfile(
        model="m",
        gpu="g",
        engine="e",
        kv_bytes_per_token=1,
        degrees={
            n: DegreeCosts(
                (PrefillPiece(0.0, 1e-4 / n),),
                (DecodePiece(0.010, 0.001 / n, per_chunk_token=per_chunk_token / n),),
                1,
                kv_capacity,
            )
            for n in (1, 2)
        },
        transfers={(a, b, "inter-node"): TransferCost(0.02, 0.0) for a in (1, 2) for b in (1, 2)},
    )


def server(degree: int = 1, **limits: StepLimits) -> ProfiledServer:
    return ProfiledServer(profile(), degree, **limits)


def rounds(*, history: float = 0.0, gap: float = 0.0) -> RoundShape:
    constant = np.full(COUNT, 1.0)
    return RoundShape(
        history=history * constant,
        increment=1000 * constant,
        tokens=100 * constant,
        gap=gap * constant,
        arrivals=np.random.default_rng(7).exponential(size=COUNT),
    )


def test_a_context_server_waits_as_an_m_d_1_queue_does() -> None:
    points = context_curve(server(), rounds(), percentile=50, bidirectional=True)
    at = {point.utilisation: point for point in points}
    assert at[0.5].rounds_per_s == pytest.approx(5.0)
    # Below half load most find the server idle: 0.1 s of prefill and 0.02 s of transfer, or a part of one more prefill.
    assert 0.12 <= at[0.5].ttft_s <= 0.22
    means = context_curve(server(), rounds(), percentile=99.9, bidirectional=True)
    assert [p.ttft_s for p in means] == sorted(p.ttft_s for p in means)


def test_without_reading_back_a_context_server_computes_the_history_too() -> None:
    reads = context_curve(server(), rounds(history=1000), percentile=50, bidirectional=True)
    computes = context_curve(server(), rounds(history=1000), percentile=50, bidirectional=False)
    assert computes[0].rounds_per_s == pytest.approx(reads[0].rounds_per_s / 2)


def test_a_generation_server_ends_where_its_kv_cache_is_full() -> None:
    # A sequence holds 1,000 tokens and on average half of 100: 100,000 tokens hold 95, the grid's last is 64 or 96.
    points = generation_curve(server(), rounds(), waiting_s=0.0)
    assert [p.concurrency for p in points][-1] == 64
    assert points[0].itl_s == pytest.approx(0.011)
    assert points[-1].tokens_per_s == pytest.approx(64 / 0.074)
    assert points[-1].kv_share == pytest.approx(64 * 1050 / 100_000)
    # Sessions that are idle as long as they decode hold as much again.
    idle = generation_curve(server(), rounds(gap=1.1), waiting_s=0.0)
    assert idle[0].kv_share == pytest.approx((1050 + 1100) / 100_000)


def test_a_generation_server_ends_where_its_batch_has_no_more_places() -> None:
    def most(limits: StepLimits) -> int:
        return generation_curve(server(decode=limits), rounds(), waiting_s=0.0)[-1].concurrency

    assert most(StepLimits(max_sequences=20)) == 20, "a point at the limit itself"
    assert most(StepLimits(max_tokens=50)) == 50, "every sequence of a step takes a token"
    assert most(StepLimits(max_sequences=500)) == 64, "memory ends first"


def test_both_limits_count_for_each_rank_and_stages_share_the_sequences() -> None:
    limits = StepLimits(max_sequences=24)
    costs = replace(profile(), degrees={degree_of(dp=2): profile().degrees[1], degree_of(pp=2): profile().degrees[1]})
    assert ProfiledServer(costs, degree_of(dp=2), decode=limits).concurrencies[-1] == 48
    assert ProfiledServer(costs, degree_of(pp=2), decode=limits).concurrencies[-1] == 24


def test_a_prompt_takes_as_many_steps_as_the_token_limit_asks_for() -> None:
    costs = replace(profile(), degrees={1: replace(profile().degrees[1], prefill=(PrefillPiece(0.02, 1e-4),))})
    whole = ProfiledServer(costs, 1).busy_seconds(np.zeros(1), np.array([1000.0]))
    parts = ProfiledServer(costs, 1, prefill=StepLimits(max_tokens=256)).busy_seconds(np.zeros(1), np.array([1000.0]))
    assert whole[0] == pytest.approx(0.12)
    assert parts[0] == pytest.approx(0.18), "four steps"


def test_prefills_beside_a_batch_take_what_it_leaves_of_a_steps_tokens() -> None:
    free = {p.concurrency: p for p in aggregated_curve(server(), rounds())}
    tight = aggregated_curve(server(decode=StepLimits(max_tokens=32)), rounds())
    assert [p.concurrency for p in tight][-1] == 24, "with 32 sequences no token is left for a prefill"
    # Chunks cost by their tokens alone here, so that more of them cost nothing more.
    assert all(p.itl_s == pytest.approx(free[p.concurrency].itl_s) for p in tight)


def test_an_aggregated_server_spends_time_on_prefills_that_its_users_wait_for() -> None:
    points = aggregated_curve(server(), rounds())
    for point in points:
        n = point.concurrency
        assert point.itl_s == pytest.approx(0.010 + 0.001 * n + n * 0.080 / 100)
        # Of each second, decoding takes what prefills leave.
        decoding = point.tokens_per_s / n * (0.010 + 0.001 * n)
        assert decoding + point.rounds_per_s * 0.080 == pytest.approx(1.0)
    assert points[-1].concurrency == 64
    assert aggregated_curve(ProfiledServer(profile(per_chunk_token=0.0), 1), rounds()) == [], "nothing is known of it"


def test_disaggregation_is_compared_with_the_aggregated_server_that_is_as_fast() -> None:
    found = matched()
    speeds = [point.tokens_per_s_user for point in found.aggregated]
    assert speeds == sorted(speeds, reverse=True)
    for match in found.front:
        speed = match.generation.tokens_per_s_user
        point = found.aggregated_for(speed)
        fast = [one for one in found.aggregated if one.tokens_per_s_user >= speed * (1 - 1e-9)]
        assert (point is None) == (not fast)
        assert point is None or point.tokens_per_s_gpu == max(one.tokens_per_s_gpu for one in fast)
    assert found.aggregated_for(1e9) is None


def matched(**changes: object) -> RateMatching:
    given_args = {"ttft_s": 1.0, "itl_s": 0.05, "percentile": 95.0, "bidirectional": True, **changes}
    both = [server(1), server(2)]
    return match_rates(Servers(both, both, both), rounds(), **given_args)  # type: ignore[arg-type]


def test_throughput_per_gpu_is_tensorrt_llms_formula() -> None:
    for match in matched().front:
        context, generation = match.context, match.generation
        gpus = gpus_of(context.degree) * generation.rounds_per_s / context.rounds_per_s + gpus_of(generation.degree)
        assert match.tokens_per_s_gpu == pytest.approx(generation.tokens_per_s / gpus)


def test_the_front_rises_and_the_best_holds_the_slo() -> None:
    found = matched()
    assert [m.tokens_per_s_gpu for m in found.front] == sorted(m.tokens_per_s_gpu for m in found.front)
    speeds = [m.generation.tokens_per_s_user for m in found.front]
    assert speeds == sorted(speeds, reverse=True)
    assert found.best.holds
    assert found.best.generation.itl_s <= 0.05
    assert all(m.tokens_per_s_gpu <= found.best.tokens_per_s_gpu for m in found.held)


def test_the_smallest_carries_the_load_and_nothing_smaller_does() -> None:
    found = matched()
    smallest = found.smallest(20.0)
    context, generation = smallest.workers_for(20.0)
    assert context * smallest.context.rounds_per_s >= 20.0 - 1e-6
    assert generation * smallest.generation.rounds_per_s >= 20.0 - 1e-6
    assert all(m.gpus_for(20.0) >= smallest.gpus_for(20.0) for m in found.held)


@pytest.mark.parametrize(("field", "value"), [("ttft_s", 0.01), ("itl_s", 0.001)])
def test_an_slo_that_nothing_holds_is_named_with_the_nearest(field: str, value: float) -> None:
    with pytest.raises(NoMatch, match=rf"slo\.{field.removesuffix('_s')}: no .* server .*the (least|fastest)"):
        matched(**{field: value})


@given(st.floats(0.02, 50.0))
def test_small_whole_numbers_come_near_the_ratio(ratio: float) -> None:
    match = RateMatch(
        context=ContextPoint(1, 0.5, 1.0, 0.1),
        generation=GenerationPoint(1, 1, 0.01, 100.0, ratio, 0.1),
        holds=True,
    )
    context, generation = match.whole_ratio
    assert 1 <= context <= LARGEST_SIDE
    assert 1 <= generation <= LARGEST_SIDE
    if 0.5 <= ratio <= 2:
        assert context / generation == pytest.approx(ratio, rel=0.1)


def test_the_command_prints_a_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "dis.yaml"
    manifest.write_text(SERVICE)
    assert cli.main(["plan", "-f", str(manifest), "--rate-match"]) == 0
    shown = capsys.readouterr().out
    for word in ("Rate matching for demo", "CTX:GEN", "TOKENS/S/GPU", "AGGREGATED", "For this workload:"):
        assert word in shown
    assert cli.main(["plan", "-f", str(manifest), "--rate-match", "-o", "json"]) == 0
    body = json.loads(capsys.readouterr().out)["rateMatching"]
    assert body["roundsPerSecond"] == pytest.approx(2.4)
    assert body["best"]["sloHeld"] is True
    assert set(body["contextCurves"]) <= {"2", "4", "8"}
    assert body["aggregatedFront"][0]["tokensPerSecondPerGpu"] > 0


def test_the_command_writes_a_page_with_both_fronts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, page = tmp_path / "dis.yaml", tmp_path / "page.html"
    manifest.write_text(SERVICE)
    assert cli.main(["plan", "-f", str(manifest), "--rate-match", "--report", str(page)]) == 0
    assert f"report written: {page}" in capsys.readouterr().err
    text = page.read_text()
    for word in ("Rate matching for demo", ">disaggregated<", ">aggregated<", "rounds per second and GPU", "SLO 5 s"):
        assert word in text
    assert "<script" not in text
    assert text.count("<svg") == 3


def test_deepseek_r1_on_h200_is_matched_as_the_documentation_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, page = REPOSITORY / "docs" / "examples" / "deepseek-r1-h200.yaml", tmp_path / "r.html"
    assert cli.main(["plan", "-f", str(manifest), "--rate-match", "--report", str(page)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    documented = (REPOSITORY / "docs" / "planner.md").read_text()
    example = documented.split("--rate-match --report r.html\n")[1].split("```")[0]
    parts = [" ".join(part.split()) for part in re.split(r"\n\n|\n\[...\]\n", example) if part.strip()]
    assert len(parts) == 6
    for part in parts:
        assert part in shown
    assert "Note: Costs of nvidia-h200 are fitted to silicon tables" in shown
    text = page.read_text()
    costs = "Costs of nvidia-h200 are fitted to"
    for word in (">11 : 6<", "degree tp2dp8ep", "SLO 60 ms", costs, "aggregated, degree"):
        assert word in text


def test_context_servers_are_listed_best_per_gpu_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "dis.yaml"
    manifest.write_text(SERVICE)
    assert cli.main(["plan", "-f", str(manifest), "--rate-match"]) == 0
    table = capsys.readouterr().out.split("Context servers")[1].split("\n\n")[0].splitlines()[2:]
    per_gpu = [float(line.split()[2]) for line in table if line.split()[-1] == "yes"]
    assert len(per_gpu) > 1
    assert per_gpu == sorted(per_gpu, reverse=True)


def test_names_in_the_page_are_escaped() -> None:
    request = request_of(
        {
            "model": {"name": "<b>model</b>"},
            "slo": {"ttft": 1.0, "itl": 0.05},
            "workload": {"preset": "ampd/gaia", "arrivalRate": 1.0},
            "capacity": {"gpus": 4, "pools": [{"name": "a", "gpuType": "nvidia-h100"}]},
        }
    )
    text = rate_match_page(matched(), None, source=SOURCE, request=request, name="<i>name</i>", version="1")
    assert "<i>" not in text
    assert "<b>model" not in text
    assert "the &lt;cost&gt; profile" in text
    assert "A &lt;remark&gt;" in text


def test_the_command_says_why_there_is_no_match(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "dis.yaml"
    manifest.write_text(SERVICE.replace("ttft: 5s", "ttft: 60ms"))
    assert cli.main(["plan", "-f", str(manifest), "--rate-match"]) == 1
    assert "No plan for demo: SLOInfeasible" in capsys.readouterr().out


def test_a_plans_options_do_not_go_with_rate_matching(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "-f", "x.yaml", "--rate-match", "--top", "2"]) == 2
    assert "--rate-match makes no plan: leave --diff, --top and --kv-tiers out" in capsys.readouterr().err
