"""`make bench-kv`: sessions with their pauses, what is sped up, the page; and two tiny runs on mock engines."""

import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench.kv.__main__ import replaced
from bench.kv.live_page import goodput_of_runs, pair_of, section, verdicts
from bench.kv.live_runs import (
    LONG,
    SHORT,
    Figures,
    LiveRecord,
    Overhead,
    Run,
    further,
    history_shares,
    overhead_of,
    predicted_figures,
    rates,
    read,
    save,
)
from bench.kv.live_scenario import ALONE, LIVE_LIMITS, SLO, TIERS, WITH_TIER, Scenario, solitary
from bench.kv.sessions import ROUND_S, after_long_pauses, cut, paced, recorded
from bench.live.search import rate_of

from weft_core.kv_tiers import tier_from_text
from weft_e2e.metrics import growth
from weft_e2e.replay.sessions import PlannedRound
from weft_e2e.stack_config import engine_command, router_config

ROOT = Path(__file__).parents[2]
SCENARIO = Scenario(speed=10.0, minutes=10.0)
REAL = Scenario(speed=1.0, minutes=10.0)


def figures(met: float = 1.0, *, recomputed: float = 0.0, resumed: float = 4.0) -> Figures:
    return Figures(
        met=met, ttft_p95=3.0, resumed_p95=resumed, itl_mean=0.04, recomputed=recomputed, loaded=0.05
    )  # fmt: skip


def run(tiers: str, rate: float, measured: Figures, predicted: Figures | None = None) -> Run:
    return Run(
        tiers=tiers, rate=rate, sessions=100, rounds=900, counted=70, resumed=60, failed=0,
        predicted=predicted or measured, measured=measured, reasons={"local: history-unreadable": 400},
        starved=(), waited_s=0.05, wall_s=200.0,
    )  # fmt: skip


def record_of(*runs: Run) -> LiveRecord:
    return LiveRecord(
        6.0, 24.0, Overhead(0.1, 1e-5), {ALONE: 0.1, WITH_TIER: 0.15}, list(runs), machine="2 cores", took_minutes=21.0
    )


def met_aims() -> LiveRecord:
    """Return a measurement in which everything is as it should be."""
    slow = figures(0.95, recomputed=0.2, resumed=40.0)
    return record_of(
        run(ALONE, 0.09, slow), run(WITH_TIER, 0.09, figures()), run(WITH_TIER, 0.13, figures(0.97)),
        run(ALONE, 0.11, figures(0.7, recomputed=0.3)), run(WITH_TIER, 0.17, figures(0.8)),
    )  # fmt: skip


def test_a_session_is_cut_to_the_rounds_that_begin_in_the_run() -> None:
    rounds = tuple(PlannedRound(100, 10, gap) for gap in (0.0, 20.0, 20.0, 20.0))
    assert cut(rounds, begins_s=100.0, ends_s=1000.0) == rounds
    assert cut(rounds, begins_s=100.0, ends_s=100.0 + 2 * (20.0 + ROUND_S) + 1) == rounds[:3]
    assert cut(rounds, begins_s=100.0, ends_s=100.0) == rounds[:1]


def test_a_seed_has_the_same_sessions_at_each_rate_and_speed() -> None:
    known = recorded(LIVE_LIMITS)
    slow = paced(known, rate=0.05, seed=3, minutes=1000.0, speed=1.0)
    fast = paced(known, rate=0.10, seed=3, minutes=1000.0, speed=10.0)
    count = slow.sessions - 50  # the last ones are cut
    assert fast.sessions > slow.sessions > 100
    assert fast.arrival[count] * 10 == pytest.approx(slow.arrival[count] / 2)
    assert (fast.increment[: slow.first_row[20]] == slow.increment[: slow.first_row[20]]).all()
    assert fast.gap[: slow.first_row[20]] * 10 == pytest.approx(slow.gap[: slow.first_row[20]])
    assert fast.rate == pytest.approx(1.0)


def test_everything_is_sped_up_alike() -> None:
    fast, real = SCENARIO.profile, REAL.profile
    for name, seconds in {
        "t_pre": [p.t_pre(history=3000, increment=900, degree=4) for p in (fast, real)],
        "t_step": [p.t_step(batch=3, context=900, chunk=64, chunk_history=10, degree=4) for p in (fast, real)],
        "t_kv": [p.t_kv(700, source=4, destination=4) for p in (fast, real)],
        "t_load": [s.tiers(WITH_TIER)[0].t_load(700, real.kv_bytes_per_token) for s in (SCENARIO, REAL)],
        "ttft": [s.slo.ttft_s for s in (SCENARIO, REAL)],
        "itl": [s.slo.itl_s for s in (SCENARIO, REAL)],
    }.items():
        assert 10 * seconds[0] == pytest.approx(seconds[1]), name
    assert fast.kv_capacity(4) == real.kv_capacity(4)
    assert SCENARIO.tiers(WITH_TIER)[0].capacity_bytes == TIERS[WITH_TIER][0].capacity_bytes


def test_the_stack_is_what_is_simulated() -> None:
    config = SCENARIO.stack(WITH_TIER)
    for worker in config.workers:
        argv = engine_command(config, worker, 1, 2, 300)
        text = next(word for word in argv if word.startswith("--kv-tier=")).partition("=")[2]
        assert tier_from_text(text) == SCENARIO.options(WITH_TIER).tiers[0]
        assert "--bidirectional" not in argv, "nothing is kept for a time to live"
        assert "--kv-events-config" in argv
    found = router_config(config)
    assert found["slo"] == {"ttft": SLO.ttft_s / 10, "itl": SLO.itl_s / 10}
    assert found["routing"] == {"policy": "weft", "mode": "ia", "predictionCorrection": "off"}
    assert not [word for word in engine_command(SCENARIO.stack(ALONE), config.workers[0], 1, 2) if "kv-tier" in word]


def test_a_prediction_is_told_in_the_time_of_the_gpus() -> None:
    """The same run, sped up: all latencies and shares are the same."""
    sample, other = (one.sample(rate=0.05, seed=1) for one in (SCENARIO, REAL))
    fast, real = ([one.simulate(held, WITH_TIER)] for one, held in ((SCENARIO, sample), (REAL, other)))
    one, same = predicted_figures(fast, 10.0), predicted_figures(real, 1.0)
    assert one.ttft_p95 == pytest.approx(same.ttft_p95, rel=0.02)
    assert one.itl_mean == pytest.approx(same.itl_mean, rel=0.02)
    assert len(after_long_pauses(fast[0], 10.0)) == len(after_long_pauses(real[0]))
    later = predicted_figures(fast, 10.0, Overhead(0.5))
    assert later.ttft_p95 == pytest.approx(one.ttft_p95 + 0.5)
    assert (later.itl_mean, later.recomputed) == (one.itl_mean, one.recomputed)


def test_solitary_rounds_meet_nobody() -> None:
    outcome = SCENARIO.simulate(solitary(SCENARIO, tokens=[9000.0] * 3, apart_s=2.0), ALONE)
    assert np.ptp(outcome.ttft) < 1e-9
    assert 10 * outcome.ttft[0] >= REAL.profile.t_pre(history=0, increment=9000, degree=4)


def test_overhead_grows_with_what_is_new() -> None:
    found = overhead_of(short_s=0.1, long_s=0.5)
    assert list(found.of(np.array([SHORT, LONG]))) == pytest.approx([0.1, 0.5])
    assert overhead_of(short_s=0.2, long_s=0.1) == Overhead(0.2)


def test_rates_are_around_the_simulated_goodputs() -> None:
    plan = rates({ALONE: rate_of(-26), WITH_TIER: rate_of(-22)})
    assert plan == [
        (ALONE, rate_of(-27)), (WITH_TIER, rate_of(-23)), (ALONE, rate_of(-25)), (WITH_TIER, rate_of(-21)),
    ]  # fmt: skip


def test_rates_go_on_until_they_enclose_the_goal_and_one_is_of_both() -> None:
    record = record_of(run(ALONE, rate_of(-28), figures(0.95)), run(WITH_TIER, rate_of(-22), figures(0.5)))
    assert further(record) == (ALONE, rate_of(-26))
    record.runs.append(run(ALONE, rate_of(-26), figures(0.5)))
    assert further(record) == (WITH_TIER, rate_of(-28))
    record.runs.append(run(WITH_TIER, rate_of(-28), figures(0.8)))
    assert further(record) == (WITH_TIER, rate_of(-30))
    record.runs.append(run(WITH_TIER, rate_of(-30), figures(0.95)))
    assert further(record) is None
    assert further(record_of()) is None


def test_history_is_counted_by_routers_and_engines() -> None:
    router = "# TYPE weft_router_history_tokens_total counter\n" + "".join(
        f'weft_router_history_tokens_total{{kind="{kind}"}} {value}\n'
        for kind, value in {"read": 0, "cached": 900, "recomputed": 100}.items()
    )
    engine = (
        "# TYPE weft_mock_tier_loaded_tokens_total counter\n" + 'weft_mock_tier_loaded_tokens_total{tier="cpu"} 50\n'
    )
    assert history_shares(growth({}, {"d-0": router, "d-0/engine": engine})) == (0.1, 0.05)


def test_aims_are_judged_by_what_ran_live() -> None:
    found = verdicts(met_aims())
    assert [one.met for one in found] == [True] * 4
    assert found[0].live == "0.0% (20.0% without)"
    assert found[1].live == "0.10 x"
    assert found[3].live.startswith("of 5: sessions within the SLO 5, TTFT P95 5,")
    poor = record_of(
        run(ALONE, 0.09, figures(0.95)), run(ALONE, 0.11, figures(0.7)),
        run(WITH_TIER, 0.09, figures(0.91, recomputed=0.05, resumed=3.9), figures(0.99)),
        run(WITH_TIER, 0.11, figures(0.8)),
    )  # fmt: skip
    assert [one.met for one in verdicts(poor)] == [False, False, False, False]
    assert [one.met for one in verdicts(record_of())] == [None] * 4
    assert "not known" in section(record_of())


def test_goodput_is_between_the_rates_around_the_goal() -> None:
    between = goodput_of_runs([run(ALONE, 0.08, figures(1.0)), run(ALONE, 0.10, figures(0.8))])
    assert between is not None
    assert between.rate == pytest.approx(0.09)
    for met, bound in ((0.95, ">"), (0.5, "<")):
        one = goodput_of_runs([run(ALONE, 0.08, figures(met))])
        assert one is not None
        assert (one.rate, one.bound) == (0.08, bound)
    assert goodput_of_runs([]) is None
    assert "at least" in verdicts(replace(met_aims(), runs=met_aims().runs[:4]))[2].live
    open_end = verdicts(record_of(run(ALONE, 0.08, figures(0.95)), run(WITH_TIER, 0.16, figures(0.5))))[2]
    assert (open_end.live, open_end.met) == ("at most 2.00 x", None)


def test_the_page_says_what_is_too_far_apart() -> None:
    off = run(ALONE, 0.09, figures(0.80), figures(0.95))
    text = section(record_of(off, run(WITH_TIER, 0.09, figures())))
    assert "**80.0% (95.0%)**" in text
    assert "40.0 ms (40.0 ms)" in text
    assert pair_of(record_of(off)) is None
    assert "Runs were left out" in section(replace(met_aims(), complete=False))


def test_either_part_of_the_page_is_replaced_alone() -> None:
    page = replaced("", simulation="# KV\n\nold\n")
    page = replaced(page, live="## Live\n\nfigures\n")
    assert page == "# KV\n\nold\n\n## Live\n\nfigures\n"
    assert replaced(page, simulation="# KV\n\nnew\n") == "# KV\n\nnew\n\n## Live\n\nfigures\n"
    assert replaced(page, live="## Live\n\nothers\n") == "# KV\n\nold\n\n## Live\n\nothers\n"


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = met_aims()
    save(record, tmp_path / "live.json")
    assert read(tmp_path / "live.json") == record


def test_the_published_section_is_of_the_published_outcomes() -> None:
    folder = ROOT / "bench/kv"
    page = (folder / "RESULTS.md").read_text(encoding="utf-8")
    text = section(read(folder / "live.json"))
    assert page.endswith(text), "make it again with python -m bench.kv --page-only"
    assert re.search(r"^## Live$", page, re.MULTILINE)


@pytest.mark.component
@pytest.mark.timeout(300)
def test_two_tiny_runs(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    done = subprocess.run(
        [sys.executable, "-m", "bench.kv", "--tiny", "--page", str(page)],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    record = read(tmp_path / "live.json")
    assert [one.tiers for one in record.runs] == [ALONE, WITH_TIER]
    for one in record.runs:
        assert one.failed == 0
        assert one.sessions > 1
        assert math.isfinite(one.measured.ttft_p95)
        assert sum(one.reasons.values()) == one.rounds
        assert one.measured.recomputed < 1
    assert page.read_text().startswith("## Live")
