"""Profiles fitted to measurements of a known profile predict what it predicts."""

from dataclasses import replace

import pytest

from weft_core.cost import CostProfile, DecodePiece
from weft_core.profile_json import profile_from_json, profile_to_json
from weft_planner.profiling.fit import FitPriors, fit_profile, with_chunks_at_any_batch
from weft_planner.profiling.measurements import GridCell, Measurement, MeasurementError
from weft_planner_tests.profiled import grid, measured, median_error, profile


def test_a_noisy_table_gives_the_profile_back() -> None:
    truth = profile(degrees=(2,))
    fitted = fit_profile(measured(truth, grid((2,)), noise=0.03))
    for function in ("prefill", "step", "transfer"):
        cells = [cell for cell in grid((2,)) if cell.function == function]
        assert median_error(fitted, truth, cells) < 0.05
    costs = fitted.degrees[2]
    assert costs.weight_bytes_per_gpu == truth.degrees[2].weight_bytes_per_gpu
    for fit in (costs.prefill_fit, costs.step_fit, fitted.transfers[2, 2, "inter-node"].fit):
        assert fit is not None
        assert 0 < fit.median <= fit.p95 < 0.3
        assert fit.points >= 4
    assert profile_from_json(profile_to_json(fitted)) == fitted


def test_experts_are_told_apart_from_other_costs() -> None:
    truth = profile(degrees=(1,), experts=0.03)
    fitted = fit_profile(measured(truth, grid((1,)), noise=0.01), FitPriors(expert_share=0.25))
    batches = [GridCell("step", 1, batch=b, context=b * 500) for b in (1, 2, 3, 6, 10, 20)]
    assert median_error(fitted, truth, batches) < 0.03
    assert max(piece.experts_seconds for piece in fitted.degrees[1].decode) > 0.01


def test_repetitions_count_by_their_median() -> None:
    truth = profile(degrees=(1,))
    table = measured(truth, grid((1,)))
    late = tuple(replace(row, seconds=row.seconds * 50) for row in table.rows)
    fitted = fit_profile(replace(table, rows=table.rows + table.rows + late))
    assert median_error(fitted, truth, grid((1,))) < 0.02


def test_mixed_steps_that_were_not_measured_are_estimated_from_prefill() -> None:
    truth = profile(degrees=(1,))
    cells = [cell for cell in grid((1,)) if not cell.chunk]
    fitted = fit_profile(measured(truth, cells))
    assert all(piece.per_chunk_token > 0 for piece in fitted.degrees[1].decode)
    assert fitted.provenance["mixedSteps"].startswith("not measured")


def test_chunks_beside_the_smallest_batches_are_never_for_nothing() -> None:
    small = DecodePiece(alpha=0.01, per_sequence=0.001)
    large = DecodePiece(alpha=0.02, per_sequence=0.0, from_batch=8.0, per_chunk_token=1e-4, per_chunk=0.002)
    dear = replace(large, per_chunk_token=2e-4, per_chunk_pair=1e-9, from_batch=16.0)
    found = with_chunks_at_any_batch((small, large, dear))
    assert found == (replace(small, per_chunk_token=2e-4, per_chunk_pair=1e-9, per_chunk=0.002), large, dear)
    assert with_chunks_at_any_batch(found) == found
    knows = replace(small, per_chunk_token=1e-5)
    assert with_chunks_at_any_batch((knows, large)) == (knows, large)


def test_prefills_without_history_still_price_the_attended_pairs() -> None:
    truth = profile(degrees=(1,))
    cells = [cell for cell in grid((1,)) if not cell.history]
    fitted = fit_profile(measured(truth, cells))
    far = GridCell("prefill", 1, history=16384, increment=8192)
    assert median_error(fitted, truth, [far]) < 0.1
    assert "no prefill after a history" in fitted.provenance["history"]


def test_what_was_not_measured_comes_from_the_fallback_and_is_said() -> None:
    truth = profile()
    table = measured(truth, [cell for cell in grid() if cell.function != "transfer"])
    bare = replace(table, about=replace(table.about, memory={}, kv_bytes_per_token=0))
    fitted = fit_profile(bare, FitPriors(fallback=truth))
    assert fitted.transfers == truth.transfers
    assert fitted.kv_capacity(1) == truth.kv_capacity(1)
    assert "1->2 inter-node" in fitted.provenance["transfers"]
    linked = fit_profile(table, FitPriors(link_rate=10e9))
    assert linked.t_kv(1000, source=1, destination=2) == pytest.approx(0.005 + 1000 * 131072 / 10e9, rel=1e-5)


def test_transfers_between_other_degrees_follow_the_slowest_measured() -> None:
    table = measured(profile(), [c for c in grid() if c.function != "transfer" or c.degree == 1])
    fitted = fit_profile(table)
    assert fitted.t_kv(4096, source=2, destination=2) == fitted.t_kv(4096, source=1, destination=1)


def only(cells: list[GridCell]) -> CostProfile:
    return fit_profile(measured(profile(degrees=(1,)), cells))


def test_too_few_rows_are_refused_by_degree_and_field() -> None:
    few = grid((1,))[:3]
    with pytest.raises(MeasurementError, match="degree 1: 3 shapes of prefill; measure 4 or more") as raised:
        only(few)
    assert "degree 1: 0 shapes of step; measure 4 or more" in raised.value.problems
    steps = [GridCell("step", 1, batch=4, context=1024 * i) for i in (1, 2, 3, 4)]
    with pytest.raises(MeasurementError, match="every step has the same batch, so its cost cannot be told"):
        only([cell for cell in grid((1,)) if cell.function == "prefill"] + steps)
    one = GridCell("transfer", 1, tokens=100, destination=1)
    with pytest.raises(MeasurementError, match="transfers 1->1 inter-node: 1 shapes of transfer"):
        only([cell for cell in grid((1,)) if cell.function != "transfer"] + [one])


def test_what_must_be_known_is_asked_for() -> None:
    table = measured(profile(degrees=(1,)), grid((1,)))
    blank = replace(table.about, model="", memory={}, kv_bytes_per_token=0)
    with pytest.raises(MeasurementError) as raised:
        fit_profile(replace(table, about=blank))
    text = str(raised.value)
    for field in ("model: not known", "memory: weight bytes per GPU and KV capacity of degree 1", "kvBytesPerToken"):
        assert field in text
    with pytest.raises(MeasurementError, match="neither prefills nor steps"):
        fit_profile(replace(table, rows=(Measurement(GridCell("transfer", 1, tokens=3, destination=1), 1.0),)))
