"""The bench beside aiconfigurator: its workloads, its record and its page, without the package."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from bench.planner_peers.cells import CELLS, MULTI, SINGLE, SLOS, Cell
from bench.planner_peers.page import aims_of, verdict, write
from bench.planner_peers.peer import BATCHES, _degree, _sizes
from bench.planner_peers.planning import MOST_STRATEGIES, request
from bench.planner_peers.record import Comparison, Contender, Record, geometric_mean, read, save

from weft_core.analytic import derive_profile
from weft_core.gpus import GPUS
from weft_core.parallelism import Parallelism, gpus_of

CELL = Cell("Qwen/Qwen3-235B-A22B", "nvidia-h200")
ONE = Comparison(
    cell=str(CELL),
    slo="strict",
    workload=SINGLE.name,
    rate=8.0,
    weft=Contender("P4x2 D8x7", 64, "weft/imd", 990.0, 0.012, 0.012),
    disaggregated=Contender("P4x4 D8x6", 64, "cache-aware", 1000.0, 0.008, 0.010),
    aggregated=Contender("C8x8", 64, "colocated", 700.0, 0.009, 0.009),
    weft_s=3.0,
    weft_cpu_s=2.5,
    peer_s=20.0,
    matched=Contender("P4x3 D8x6", 60, "", 985.0, 0.0, 0.0),
)
RECORD = Record(
    [ONE, replace(ONE, workload=MULTI.name, weft_s=9.0, weft_cpu_s=6.0, matched=None)],
    {"DeepSeek-R1 H100, strict": "MoE products at 8 bits"},
    {str(CELL): ["degree 2: the model does not fit"]},
    "This one is made up.",
    "none",
)


def test_a_single_round_is_what_it_says_and_a_mean_round_of_sessions_has_a_history() -> None:
    assert SINGLE.lengths == (4000, 1000, 0)
    assert SINGLE.rounds == 1
    isl, osl, prefix = MULTI.lengths
    workload = MULTI.workload(1.0)
    assert osl == pytest.approx(workload.mean_decode, rel=0.1)
    assert 0 < prefix < isl
    new = workload.first_prompt.mean / MULTI.rounds + workload.increment.mean * (1 - 1 / MULTI.rounds)
    assert isl - prefix == pytest.approx(new, rel=0.15)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_every_strategy_is_one_of_aiconfigurators_and_back(cell: Cell) -> None:
    assert len(set(cell.strategies)) == len(cell.strategies) > 4
    for degree in cell.strategies:
        sizes = _sizes(cell, degree)
        assert sizes["tp"] * sizes["pp"] * sizes["dp"] == gpus_of(degree)
        if cell.dimensions.experts > 1:
            assert sizes["moe_tp"] * sizes["moe_ep"] == gpus_of(degree)
        else:
            assert sizes["moe_tp"] == sizes["moe_ep"] == 1
        assert _degree(sizes, "") == degree
    assert Parallelism(dp=8, ep=True) in cell.strategies or cell.dimensions.experts == 1


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_request_takes_every_strategy_of_a_cell(cell: Cell) -> None:
    profile = derive_profile(cell.dimensions, GPUS[cell.gpu], degrees=(cell.gpus,))
    asked = request(cell, SLOS[0], SINGLE, profile, rate=1.0, strategies=cell.strategies[:MOST_STRATEGIES])
    assert set(asked.capacity.pools[0].usable_degrees) <= set(cell.strategies)


def test_batch_sizes_rise() -> None:
    assert list(BATCHES) == sorted(set(BATCHES))
    assert (BATCHES[0], BATCHES[-1]) == (1, 512)


def test_a_ratio_is_over_the_better_of_both_answers_and_unknown_without_one() -> None:
    assert ONE.ratio("tokens_per_s_gpu") == pytest.approx(0.99)
    assert ONE.ratio("goodput") == pytest.approx(0.012 / 0.009)
    missed = replace(ONE, weft=replace(ONE.weft, tokens_per_s_gpu=math.nan))
    assert missed.ratio("tokens_per_s_gpu") == 0
    none = replace(ONE, matched=Contender("no layout holds the SLO", 0, ""))
    assert none.matched_ratio == 0
    assert math.isnan(replace(ONE, matched=None).matched_ratio)
    assert math.isnan(replace(ONE, disaggregated=None, aggregated=None).ratio("goodput"))


def test_a_geometric_mean_leaves_out_what_is_unknown() -> None:
    assert geometric_mean([2.0, 0.5, math.nan]) == pytest.approx(1)
    assert geometric_mean([0.0, 2.0]) == 0
    assert math.isnan(geometric_mean([]))


def test_a_record_is_read_as_it_was_saved(tmp_path: Path) -> None:
    save(RECORD, tmp_path / "results.json")
    assert read(tmp_path / "results.json") == RECORD
    assert RECORD.has("DeepSeek-R1 H100", "strict")
    assert not RECORD.has("DeepSeek-R1 H100", "relaxed")
    assert RECORD.has(str(CELL), ONE.slo)
    assert not RECORD.has("Llama-3.1-70B H200", "strict")


def test_aims_are_met_or_missed() -> None:
    metric, matched, simulated, planning = aims_of(RECORD)
    assert metric.found == pytest.approx(0.99)
    assert matched.found == pytest.approx(0.985)
    assert simulated.found == pytest.approx(4 / 3)
    assert metric.met
    assert simulated.met
    assert (planning.found, verdict(planning)) == (6.0, "**missed**")
    assert [verdict(aim) for aim in aims_of(Record())] == ["not measured"] * 4


def test_the_page_has_both_workloads_what_is_left_out_and_why(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    write(RECORD, page)
    text = page.read_text(encoding="utf-8")
    single, multi = text.split("## Multi-round sessions")
    assert "P4x3 D8x6: 985" in single
    assert "rate matching |" not in multi.split("## Method")[0]
    for part in ("Single round", "Multi-round sessions", "P4x2 D8x7", "MoE products at 8 bits", "**missed**", "0.99"):
        assert part in text
    assert "nan" not in text.lower().replace("tenant", "")
