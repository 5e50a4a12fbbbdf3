"""`make bench-live`: its search, statistics, sessions and page; and one tiny cell that really runs."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench.live.aims import aims_of, result_of
from bench.live.cells import CELLS, CHUNK, DEGREE
from bench.live.contenders import AMPD, DEFAULT, PEERS, contenders_of
from bench.live.page import write
from bench.live.prediction import predict
from bench.live.record import Predicted, Record, Row, read, save
from bench.live.rows import Task, prediction_errors
from bench.live.running import MOST, closest, cores_of, failed_at, kept
from bench.live.search import (
    PER_OCTAVE,
    Goodput,
    Ratio,
    geometric_mean,
    goodput_of,
    highest_held,
    next_step,
    rate_of,
    ratio,
    step_of,
)
from bench.live.shift import shift_ratio
from bench.live.workloads import CONTEXT, KINDS, Kind, sample_of
from bench.router.peers import Backends

from weft_core.prediction import Estimate
from weft_e2e.stack_config import engine_command, router_config, workers_file

ROOT = Path(__file__).parents[2]
BALANCED = CELLS["balanced"]


def row(contender: str, step: int, seed: int, share: float, cell: str = "balanced") -> Row:
    """Return a run of 20 sessions of which a share met the SLO."""
    held = round(20 * share)
    return Row(
        cell=cell, contender=contender, step=step, rate=rate_of(step), seed=seed, slow=1.0, rounds=60, failed=0,
        met=(1,) * held + (0,) * (20 - held), late=20 - held, stalled=0, ttft_p50=1.0, ttft_p95=2.0,
        ttft_first_p95=2.0, ttft_later_p95=1.5, itl_p50=0.03, itl_p95=0.04, itl_mean=0.03, gap_max=0.5, local=0.25,
        reasons={"remote: shortest-finish": 60}, tokens={"prompts": 100, "computed": 50}, trusted=True, waited_s=0.01,
        lag_s=0.01, lost_s=0.0, starved=(), wall_s=30.0, predicted=Predicted(share, 2.0, 0.03, 0.25),
        errors={"local": (10, 1.1, 1.5)},
    )  # fmt: skip


def record_of(*curves: tuple[str, float, float], cell: str = "balanced") -> Record:
    """Return a record in which contenders' attainment falls over four steps from the step of a rate on."""
    rows = [
        row(name, step, seed, min(1.0, max(0.0, 0.9 - fall * (step - step_of(rate)) + 0.05 * (seed - 2))), cell)
        for name, rate, fall in curves
        for step in range(step_of(rate) - 1, step_of(rate) + 3)
        for seed in (1, 2, 3)
    ]
    return Record("A test.", "a machine", (1, 2, 3), 1.0, {cell: "weft/ia"}, {cell: {DEFAULT: 2.0}}, rows)


@pytest.mark.parametrize("truth", [-7, 0, 3, 12])
@pytest.mark.parametrize("resolution", [1, 2])
def test_a_search_ends_around_the_goal(truth: int, resolution: int) -> None:
    shares: dict[int, dict[int, float]] = {}
    tried = []
    while (step := next_step(shares, [1], start=4, resolution=resolution, most=12)) is not None:
        tried.append(step)
        shares[step] = {1: 1.0 if step <= truth else 0.6}
    assert len(tried) == len(set(tried))
    low = max(step for step in tried if step <= truth)
    high = min(step for step in tried if step > truth)
    assert high - low <= resolution
    found = goodput_of(shares)
    assert rate_of(low) <= found.rate <= rate_of(high)
    assert not found.bound


def test_all_seeds_begin_at_the_highest_rate_that_held() -> None:
    assert highest_held({4: {1: 1.0}, 6: {1: 0.95}, 8: {1: 0.2}}) == 6
    assert highest_held({4: {1: 0.5}, 6: {1: 0.2}, 2: {}}) == 4


def test_a_search_waits_for_all_its_seeds_and_ends_after_its_steps() -> None:
    shares = {4: {1: 1.0, 2: 1.0}, 6: {1: 0.2}}
    assert next_step(shares, [1], start=4, resolution=2, most=9) is None
    assert next_step(shares, [1, 2], start=4, resolution=1, most=9) == 6
    assert next_step(shares, [1, 2, 3], start=5, resolution=1, most=9) == 5
    assert next_step({4: {1: 1.0}, 6: {1: 1.0}}, [1], start=4, resolution=1, most=2) is None


def test_attainment_that_rises_for_a_step_does_not_end_a_search_early() -> None:
    shares = {2: {1: 0.95}, 4: {1: 0.85}, 6: {1: 0.95}, 8: {1: 0.3}}
    step = next_step(shares, [1], start=2, resolution=1, most=9)
    assert step is not None
    assert 2 < goodput_step(goodput_of(shares)) < 8


def goodput_step(found: Goodput) -> float:
    return PER_OCTAVE * math.log2(found.rate)


def test_goodput_tells_each_seed_apart_and_what_was_not_bracketed() -> None:
    shares = {step: {1: 0.9 - 0.1 * step - 0.05, 2: 0.9 - 0.1 * step + 0.05} for step in (-1, 0, 1)}
    found = goodput_of(shares)
    assert goodput_step(found) == pytest.approx(0.0, abs=1e-9)
    low, high = (PER_OCTAVE * math.log2(found.of_seed[seed]) for seed in (1, 2))
    assert [low, high] == pytest.approx([-0.5, 0.5])
    assert found.interval.low < found.rate < found.interval.high
    assert goodput_of({0: {1: 0.5}}).bound == "<"
    assert goodput_of({0: {1: 1.0}}).bound == ">"
    assert math.isnan(goodput_of({0: {1: 1.0}, 1: {1: 0.5}}).interval.low)
    with pytest.raises(ValueError, match="nothing was tried"):
        goodput_of({})


def test_ratios_pair_seeds_and_keep_bounds() -> None:
    mine, other = Goodput(2.0, {1: 1.8, 2: 2.2, 3: 2.0}), Goodput(1.0, {1: 0.9, 2: 1.1})
    found = ratio(mine, other)
    assert (found.value, found.bound) == (2.0, "")
    assert found.interval.low == pytest.approx(2.0)
    assert ratio(mine, replace(other, bound="<")).bound == ">"
    assert ratio(replace(mine, bound="<"), other).bound == "<"
    assert ratio(replace(mine, bound="<"), replace(other, bound="<")).bound == ""
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert math.isnan(geometric_mean([]))


def logistic(truth: float, seeds: dict[int, float], steps: tuple[int, ...]) -> dict[int, dict[int, float]]:
    """Return attainment that holds the goal up to a step, less or more by seed."""
    return {
        step: {seed: 1 / (1 + math.exp(-math.log(9) - hard + 0.4 * (step - truth))) for seed, hard in seeds.items()}
        for step in steps
    }


def test_a_shift_between_curves_is_found_from_different_rates_and_seeds() -> None:
    seeds = {4: 0.5, 5: 0.0, 6: -0.5}
    found = shift_ratio(logistic(6, seeds, (4, 6, 8)), logistic(4, seeds, (2, 4, 6)))
    assert found.value == pytest.approx(2 ** (2 / PER_OCTAVE), rel=0.01)
    assert found.interval.low == pytest.approx(found.value, rel=0.01), "nothing is left to chance"
    hardest_late = logistic(4, {4: 0.5, 5: 0.0}, (2,)) | logistic(4, seeds, (4, 6))
    assert shift_ratio(logistic(6, seeds, (6, 8)), hardest_late).value == pytest.approx(found.value, rel=0.01)
    with pytest.raises(ValueError, match="two rates or more"):
        shift_ratio({4: {4: 0.9}}, {4: {4: 0.8}})
    assert math.isnan(shift_ratio(logistic(6, {4: 0}, (4, 8)), logistic(4, {4: 0}, (4, 8))).interval.low)


def test_a_run_that_goes_wrong_moves_the_shift_less_than_the_goodput() -> None:
    seeds = {4: 0.5, 5: 0.0, 6: -0.5}
    mine, other = logistic(4, seeds, (0, 2, 4, 6, 8)), logistic(4, seeds, (0, 2, 4, 6, 8))
    mine[4][5] -= 0.3
    assert ratio(goodput_of(mine), goodput_of(other)).value < 0.91
    assert 0.93 < shift_ratio(mine, other).value < 1
    assert shift_ratio(mine, other).interval.high > 1


def test_a_ratio_is_of_the_seeds_that_both_have() -> None:
    """A contender that ran with the easiest seed alone is no better for it."""
    peer = next(iter(PEERS))
    whole = record_of((DEFAULT, 2.0, 0.2), (peer, 2.1, 0.2))
    part = replace(whole, rows=[one for one in whole.rows if one.contender != peer or one.seed == 3])
    fair, found = (result_of(record, "balanced") for record in (whole, part))
    assert fair.of_peer is not None
    assert found.of_peer is not None
    assert found.of_peer.value == pytest.approx(fair.of_peer.value, rel=0.02)
    assert found.goodputs[DEFAULT].rate / found.goodputs[peer].rate < 0.98 * found.of_peer.value


def test_a_contender_that_held_the_goal_nowhere_counts_with_the_lowest_rate_tried() -> None:
    """It may be better than another whose goodput is known; the ratio is a lower bound then."""
    firm, open_ended = list(PEERS)[:2]
    record = record_of((DEFAULT, 2.0, 0.2), (firm, 1.0, 0.2), (open_ended, 1.6, 0.2))
    unheld = [one for one in record.rows if one.contender != open_ended or one.rate > 1.7]
    found = result_of(replace(record, rows=unheld), "balanced")
    assert (found.goodputs[open_ended].bound, found.peer) == ("<", open_ended)
    assert found.of_peer is not None
    assert found.of_peer.bound == ">"
    assert found.of_peer.value == pytest.approx(2.0 / found.goodputs[open_ended].rate)


def test_rates_are_compared_by_the_same_seeds() -> None:
    """An easy seed was tried alone at a low rate: 95 % there say little, as it held 93 % where others had 71."""
    alone = goodput_of({4: {1: 0.95}, 6: {1: 0.93, 2: 0.71, 3: 0.71}, 8: {1: 0.82}})
    assert alone.bound == "<"
    both = goodput_of({2: {1: 0.97, 2: 0.93, 3: 0.92}, 4: {1: 0.95}, 6: {1: 0.93, 2: 0.71, 3: 0.71}})
    assert both == goodput_of({2: {1: 0.97, 2: 0.93, 3: 0.92}, 6: {1: 0.93, 2: 0.71, 3: 0.71}})
    assert both.bound == ""
    assert both.of_seed[1] > both.rate > both.of_seed[2]


def test_rates_at_which_the_time_was_over_for_some_seeds_count_with_the_others() -> None:
    found = goodput_of({2: {4: 0.97, 5: 0.95, 6: 0.96}, 4: {4: 0.8, 6: 0.7}})
    assert 2 < goodput_step(found) < 4
    apart = goodput_of({2: {4: 0.97, 5: 0.95}, 4: {4: 0.8, 6: 0.7}})
    assert 2 < goodput_step(apart) < 4


def test_who_goes_on_is_the_default_ampd_and_the_best_of_each_side() -> None:
    first, second = list(PEERS)[:2]
    found = {
        name: Goodput(rate, {1: rate})
        for name, rate in {
            DEFAULT: 1.0, AMPD: 0.3, "weft/imd": 1.2, "remote-jsq": 1.1, "ppd": 0.2, first: 0.5, second: 0.6,
        }.items()
    }  # fmt: skip
    found["always-remote"] = Goodput(9.0, {1: 9.0}, "<")
    assert kept(found) == {DEFAULT: MOST, second: 2, AMPD: 2}
    assert kept(found, pair=True) == {"weft/imd": MOST, DEFAULT: MOST, second: 2, AMPD: 2}
    assert kept({DEFAULT: found[DEFAULT], second: found[second]}, pair=True) == {DEFAULT: MOST, second: MOST}


def test_further_seeds_are_for_the_default_and_the_best_other_where_they_are_close() -> None:
    near = record_of((DEFAULT, 2.0, 0.2), ("weft/imd", 1.9, 0.2), ("weft/ia", 1.2, 0.2))
    assert closest(near, "balanced") == (DEFAULT, "weft/imd")
    assert closest(record_of((DEFAULT, 2.0, 0.2), ("weft/imd", 1.4, 0.2)), "balanced") == ()
    assert closest(record_of((DEFAULT, 2.0, 0.2)), "balanced") == ()


def test_further_seeds_decide_between_the_default_and_the_best_other() -> None:
    """The other was lucky with the first seeds, and is behind in longer runs with others."""
    first = record_of((DEFAULT, 2.0, 0.2), ("weft/imd", 2.4, 0.2), ("weft/ia", 1.8, 0.2))
    later = record_of((DEFAULT, 1.9, 0.2), ("weft/imd", 1.7, 0.2), ("weft/ia", 2.9, 0.2))
    longer = [replace(row, seed=row.seed + 3, met=2 * row.met) for row in later.rows if row.contender != "weft/ia"]
    both = replace(first, further=(4, 5, 6), rows=[*first.rows, *longer])
    found = result_of(both, "balanced")
    assert found.best == "weft/imd"
    assert found.of_best is not None
    assert found.of_best.value == pytest.approx(1.9 / 1.7, rel=0.03)
    assert found.goodputs[DEFAULT] == result_of(replace(later, rows=longer), "balanced").goodputs[DEFAULT]
    assert found.goodputs["weft/ia"] == result_of(first, "balanced").goodputs["weft/ia"]
    unfinished = [row for row in longer if row.seed < 6 or row.step == longer[0].step]
    part = result_of(replace(both, rows=[*first.rows, *unfinished]), "balanced")
    assert part.of_best == result_of(first, "balanced").of_best, "one rate with all further seeds decides nothing"


def test_what_routes_without_a_profile_is_run_in_the_base_of_a_cell_only() -> None:
    peer = next(iter(PEERS))
    base = record_of((DEFAULT, 2.0, 0.2), ("weft/imd", 1.9, 0.2), ("remote-jsq", 1.2, 0.2), (peer, 0.8, 0.2))
    misled = record_of((DEFAULT, 1.5, 0.2), cell="profile-too-slow")
    both = replace(base, rows=[*base.rows, *misled.rows])
    found = result_of(both, "profile-too-slow")
    assert list(found.goodputs) == [DEFAULT, "remote-jsq", peer]
    assert (found.best, found.peer) == ("remote-jsq", peer)
    assert found.goodputs["remote-jsq"] == result_of(base, "balanced").goodputs["remote-jsq"]
    assert found.goodputs[DEFAULT] == result_of(misled, "profile-too-slow").goodputs[DEFAULT]


def test_a_run_with_few_sessions_counts_only_where_there_is_no_other() -> None:
    whole = record_of((DEFAULT, 2.0, 0.2))
    few = replace(whole.rows[0], met=(1,) * 5)
    assert replace(whole, rows=[few]).shares("balanced", DEFAULT) == {few.step: {few.seed: 1.0}}
    both = replace(whole, rows=[*whole.rows, few])
    assert both.shares("balanced", DEFAULT) == whole.shares("balanced", DEFAULT)


def test_who_is_left_out_failed_and_a_slow_run_needs_fewer_cores() -> None:
    assert failed_at({}) == failed_at({4: {1: 0.95}}) == math.inf
    assert failed_at({4: {1: 0.95}, 2: {1: 0.8}, 6: {1: 0.5}}) == rate_of(2)
    task = Task("balanced", DEFAULT, "weft/ia", 0, 1, 96)
    assert 0 < cores_of(replace(task, slow=2.0)) == pytest.approx(cores_of(task) / 2)
    assert cores_of(task) < cores_of(replace(task, step=8))


def test_aims_are_held_to_the_worst_cell_and_to_geometric_means() -> None:
    peer = next(iter(PEERS))
    good = record_of((DEFAULT, 2.0, 0.2), ("weft/imd", 1.9, 0.2), (peer, 1.0, 0.2), (AMPD, 0.5, 0.2))
    bad = record_of((DEFAULT, 1.0, 0.2), ("weft/imd", 2.0, 0.2), (peer, 1.0, 0.2), cell="decode-rich")
    results = [result_of(good, "balanced"), result_of(bad, "decode-rich")]
    assert (results[0].best, results[0].peer) == ("weft/imd", peer)
    regret, peers, ampd, wrong = aims_of(results)
    assert math.isnan(wrong.found)
    assert regret.note == "decode-rich"
    assert [aim.found for aim in (regret, peers, ampd)] == pytest.approx([0.5, math.sqrt(2.0), 4.0])
    assert [aim.met for aim in (regret, peers, ampd)] == [False, True, True]
    assert [aim.met for aim in aims_of(results[:1])] == [True, True, True, False]
    misled = record_of((DEFAULT, 1.85, 0.2), ("remote-jsq", 2.0, 0.2), cell="profile-too-slow")
    with_wrong = aims_of([results[0], result_of(misled, "profile-too-slow")])
    assert [aim.met for aim in with_wrong] == [True, True, True, True]
    assert with_wrong[3].found == pytest.approx(2.0 ** (-1 / 8))
    assert not any(aim.met or aim.missed for aim in aims_of([]))
    open_ended = replace(results[0], of_peer=Ratio(1.0, Estimate(1.0, 1.0, 1.0), ">"))
    assert [(aim.met, aim.missed) for aim in aims_of([open_ended])][1] == (False, False)
    at_most = replace(results[0], of_peer=Ratio(2.0, Estimate(2.0, 2.0, 2.0), "<"))
    assert [(aim.met, aim.missed) for aim in aims_of([at_most])][1] == (False, False)


def written(record: Record, folder: Path) -> str:
    write(record, folder / "RESULTS.md")
    return (folder / "RESULTS.md").read_text().split("## Method")[0].replace("† rests", "")


def test_a_page_is_made_again_from_its_record(tmp_path: Path) -> None:
    peer = next(iter(PEERS))
    record = record_of((DEFAULT, 2.0, 0.2), (AMPD, 1.2, 0.2), (peer, 1.5, 0.1))
    record.broken["sglang cache_aware"] = "it did not start"
    assert " †" not in written(record, tmp_path)
    record.rows[-1] = replace(record.rows[-1], starved=("too busy",))
    assert " †" in written(record, tmp_path)
    save(record, tmp_path / "results.json")
    again = read(tmp_path / "results.json")
    assert again == record
    aims = write(again, tmp_path / "RESULTS.md")
    text = (tmp_path / "RESULTS.md").read_text()
    assert "| balanced | 2.00 ± " in text
    assert "it did not start" in text
    assert "**missed**" in text
    assert "nan" not in text.lower().replace("balanced", "")
    assert len(aims) == 4
    for name in ("goodput", "balanced"):
        assert (tmp_path / "plots" / f"{name}.svg").read_text().startswith("<svg")
    (tmp_path / "results.json").write_text('{"surprise": 1, "rows": []}')
    with pytest.raises(ValueError, match="surprise"):
        read(tmp_path / "results.json")


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_seed_has_the_same_sessions_at_every_rate(kind: Kind) -> None:
    one, fast = (sample_of(kind, rate=rate, seed=1, sessions=12) for rate in (1.0, 4.0))
    assert one.sessions == fast.sessions == 12
    for name in ("increment", "tokens", "history", "gap"):
        np.testing.assert_array_equal(getattr(one, name), getattr(fast, name))
    np.testing.assert_allclose(one.arrival, 4 * fast.arrival)
    assert (one.history[one.first_row] == 0).all()
    assert one.reserve.max() <= CONTEXT + 16
    other = sample_of(kind, rate=1.0, seed=2, sessions=12)
    assert other.rows != one.rows or (other.increment != one.increment).any()
    slow = sample_of(kind, rate=1.0, seed=1, sessions=12, slow=3.0)
    np.testing.assert_allclose(slow.arrival, 3 * one.arrival)
    np.testing.assert_allclose(slow.gap, 3 * one.gap)


def test_contenders_share_engines_and_a_mode_is_run_once() -> None:
    known = contenders_of(BALANCED, "weft/ia")
    assert "weft/ia" not in known
    assert {DEFAULT, "weft/imd", "remote-jsq", AMPD, "always-local", *PEERS} <= known.keys()
    for name, one in known.items():
        config = one.stack(BALANCED, 1.0, "sidecars")
        commands = {w.name: engine_command(config, w, 1, 2) for w in config.workers}
        assert commands["d-0"][commands["d-0"].index("--chunk") + 1] == str(CHUNK)
        assert ("--bidirectional" in commands["p-0"]) == (name not in PEERS)
    routing = router_config(known[DEFAULT].stack(BALANCED, 1.0, "standalone"))["routing"]
    assert routing == {"policy": "weft", "mode": "ia", "binding": "kv-headroom"}


@pytest.mark.parametrize("name", ["profile-too-fast", "profile-too-slow"])
def test_engines_take_what_they_take_whatever_the_routers_profile_says(name: str) -> None:
    cell = CELLS[name]
    one = contenders_of(cell, "weft/imd")[DEFAULT]
    config, right = (one.stack(which, 2.0, "standalone") for which in (cell, BALANCED))
    told, truth = (of.profile.degrees[DEGREE].prefill[0].figures[0] for of in (config, right))
    assert told == pytest.approx(cell.profile_error * truth)
    assert told * config.time_scale == pytest.approx(truth * right.time_scale)
    assert (config.ttft_s, config.itl_s) == (right.ttft_s, right.itl_s)
    assert (cell.only, cell.base) == ((DEFAULT,), "balanced")


def test_colocated_workers_do_both_and_peers_get_them_as_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = CELLS["co-located"]
    known = contenders_of(cell, "colocated")
    assert "weft/imd" not in known
    config = known[DEFAULT].stack(cell, 1.0, "standalone")
    assert not config.paired
    command = engine_command(config, config.workers[0], 1, 2)
    assert command[command.index("--role") + 1] == "both"
    told = workers_file(config, {worker.name: 5 for worker in config.workers})
    assert [(one["role"], one["url"]) for one in told["workers"]] == [("decode", "http://127.0.0.1:5")] * 4
    monkeypatch.setattr("bench.router.peers.Peer.installed", lambda peer: [peer.name])
    for name, one in PEERS.items():
        assert one.peer is not None
        argv = one.peer.argv(Backends([], [7, 8]), 1, 2)
        assert argv[argv.index("--worker-urls") + 1 :][:2] == ["http://127.0.0.1:7", "http://127.0.0.1:8"]
        assert argv[argv.index("--policy") + 1] == name.split()[1]
        pair = one.peer.argv(Backends([5], [7], [6]), 1, 2)
        assert ("6" in pair) == (one.peer.protocol == "sglang")


def test_a_run_slowed_down_is_predicted_alike() -> None:
    one = contenders_of(BALANCED, "weft/ia")[DEFAULT]
    told = [
        predict(BALANCED, one, sample_of(BALANCED.kind, rate=1.0, seed=1, sessions=12, slow=slow), slow)[1]
        for slow in (1.0, 2.0)
    ]
    assert told[0] is not None
    assert told[1] is not None
    assert told[1].ttft_p95 == pytest.approx(told[0].ttft_p95, rel=0.1)
    assert told[1].met == pytest.approx(told[0].met, abs=0.1)


def test_errors_of_predictions_are_told_by_route() -> None:
    decisions = [
        {"chosen": "p-0", "predicted_ttft": 1.0, "observed_ttft": 1.0 + 0.1 * k} for k in range(11)
    ] + [
        {"chosen": "local-chunked", "predicted_ttft": 0.5, "observed_ttft": 1.0},
        {"chosen": "local", "predicted_ttft": None, "observed_ttft": 1.0},
        {"chosen": "p-1", "predicted_ttft": 1.0, "observed_ttft": None},
    ]  # fmt: skip
    assert prediction_errors(decisions) == {"local": (1, 2.0, 2.0), "remote": (11, 1.5, 1.9)}


@pytest.mark.component
@pytest.mark.timeout(300)
def test_a_tiny_cell_runs(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench.live", "--tiny", "--results", str(results)],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert "not measured" in done.stdout, "without a peer and AMPD's rule"
    assert done.returncode == (": missed" in done.stdout)
    record = read(results)
    assert record.broken == {}
    assert {one.contender for one in record.rows} == {DEFAULT, "always-local"}
    assert all(len(one.met) == 3 and one.failed == 0 for one in record.rows)
    local = [one for one in record.rows if one.contender == "always-local"]
    assert all(one.local == 1.0 and one.reasons and one.errors for one in local)
    assert (tmp_path / "RESULTS.md").exists()
