"""Simulate sessions with recorded pauses, with and without tiers below the GPUs; exit status 1: an aim is missed."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np
from bench.kv.sessions import CONTEXT, LONG_PAUSE_S, TRACE, after_long_pauses, returning, sample_of
from bench.live.search import goodput_of, next_step, rate_of, step_of
from bench.paper.page import machine, table

from weft_core.analytic import derive_profile
from weft_core.gpus import GPUS
from weft_core.kv_tiers import KVTier, tier_from_text
from weft_core.models import MODELS
from weft_core.policies.retention import RETENTIONS, Retention
from weft_planner.simulation import Layout, Options, Outcome, PolicyChoice, SloClass, Worker, simulate
from weft_planner.simulation.statistics import attainment

MODEL, GPU, DEGREE = "meta-llama/Llama-3.1-70B-Instruct", "nvidia-h200", 4
LAYOUT = Layout((Worker(DEGREE),) * 2, (Worker(DEGREE),) * 2, "disaggregated")
SLO = SloClass(8.0, 0.05)
POLICY = PolicyChoice(route="weft", mode="ia", order="moore-hodgson")
TIERS: Mapping[str, tuple[KVTier, ...]] = {
    "GPUs alone": (),
    "with 200 GiB of host memory": (tier_from_text("cpu:200Gi"),),
    "with 1 TiB of host memory": (tier_from_text("cpu:1Ti"),),
    "with 200 GiB, and 2 TiB of disk": (tier_from_text("cpu:200Gi"), tier_from_text("disk:2Ti")),
}
IN_NO_TIME = {"with 1 TiB, loaded in no time": (KVTier("cpu", 2.0**40, 1e18),)}
"""What loading KV before its round comes could bring at most, if it always knew when that is."""
BASE, HALF_A_NODE = "GPUs alone", "with 1 TiB of host memory"
"""The aims are of these two: a DGX H200 has 2 TiB, and a worker half of its GPUs."""
SEEDS = (1, 2, 3)
GUESS = 0.5
STEPS = 16
CALM = 0.9
"""Share of the goodput of the GPUs alone at which retentions are compared: nearer to it, chance decides."""
LOADED_IDLE_S, LOADED_BEFORE_S = 60.0, 10.0
"""KV that was evicted has been idle for so long, and would be loaded so long before its round."""
RESULTS = Path(__file__).with_name("RESULTS.md")
RECOMPUTED_AIM, TTFT_AIM, GOODPUT_AIM = 0.02, 0.5, 1.3


@dataclass(frozen=True, slots=True)
class Found:
    """What a set of tiers gives with a retention: goodput, and at one rate shares of history and latencies.

    ``resumed_p95_s``: P95 of the TTFT of rounds after a long pause.
    """

    tiers: str
    retention: Retention
    goodput: float
    recomputed: float
    loaded: float
    resumed: int
    resumed_p95_s: float
    ttft_p95_s: float


@click.command()
@click.option("--minutes", type=click.FloatRange(1), default=40.0, show_default=True, help="In which sessions arrive.")
@click.option("--page", type=click.Path(path_type=Path), default=RESULTS, help="Where the page goes.")
def main(minutes: float, page: Path) -> None:
    """Find what tiers bring, and write the page."""
    options = Options(handover="pull", history="read", chunked=True, warm_up=0.3, cool_down=0.05)
    tiers = {**TIERS, **IN_NO_TIME}
    choices: list[tuple[str, Retention]] = [(name, retention) for name in tiers for retention in RETENTIONS]
    carried = {
        (name, retention): _goodput(replace(options, tiers=tiers[name], retention=retention), minutes)
        for name, retention in choices
    }
    rate = carried[BASE, "lru"]

    def found(name: str, retention: Retention, at: float) -> Found:
        chosen = replace(options, tiers=tiers[name], retention=retention)
        runs = [_run(chosen, at, seed, minutes) for seed in SEEDS]
        return _found(name, retention, carried[name, retention], runs)

    rows = [found(name, "lru", rate) for name in TIERS]
    calm = [found(name, retention, CALM * rate) for name, retention in choices]
    body = {"lru": [asdict(one) for one in rows], "retentions": [asdict(one) for one in calm]}
    page.with_name("results.json").write_text(json.dumps(body) + "\n", encoding="utf-8")
    text = written(rows, calm, rate, minutes)
    page.write_text(text, encoding="utf-8")
    click.echo(text)
    sys.exit(0 if all(met for _, _, met in aims(rows)) else 1)


def _run(options: Options, rate: float, seed: int, minutes: float) -> Outcome:
    profile = derive_profile(MODELS[MODEL], GPUS[GPU], degrees=[DEGREE])
    sample = sample_of(rate=rate, seed=seed, minutes=minutes)
    return simulate(sample, LAYOUT, {"gpu": profile}, POLICY, [SLO], options=options, seed=seed)


def _goodput(options: Options, minutes: float) -> float:
    """Return the sessions per second of which 90 % meet the SLO."""
    shares: dict[int, dict[int, float]] = {}
    while (step := next_step(shares, SEEDS, start=step_of(GUESS), resolution=1, most=STEPS)) is not None:
        for seed in SEEDS:
            share = attainment(_run(options, rate_of(step), seed, minutes))
            shares.setdefault(step, {})[seed] = 0.0 if math.isnan(share) else share
    return goodput_of(shares).rate


def _found(name: str, retention: Retention, goodput: float, runs: Sequence[Outcome]) -> Found:
    history = sum(float(run.sample.history[run.state == 1].sum()) for run in runs)
    resumed = np.concatenate([after_long_pauses(run) for run in runs])
    every = np.concatenate([run.ttft[run.counted] for run in runs])
    return Found(
        name,
        retention,
        goodput,
        sum(run.recomputed_tokens for run in runs) / history,
        sum(run.loaded_tokens for run in runs) / history,
        len(resumed),
        float(np.quantile(resumed, 0.95)),
        float(np.quantile(every, 0.95)),
    )


def aims(found: Sequence[Found]) -> list[tuple[str, str, bool]]:
    """Return each aim, what was found, and whether it is met."""
    base, tier = (next(one for one in found if one.tiers == name) for name in (BASE, HALF_A_NODE))
    ratio, gain = tier.resumed_p95_s / base.resumed_p95_s, tier.goodput / base.goodput
    return [
        (
            f"history computed again, at most {RECOMPUTED_AIM:.0%}",
            f"{tier.recomputed:.1%}",
            tier.recomputed <= RECOMPUTED_AIM,
        ),
        (f"TTFT P95 after a long pause, at most {TTFT_AIM:g} x", f"{ratio:.2f} x", ratio <= TTFT_AIM),
        (f"goodput, at least {GOODPUT_AIM:g} x", f"{gain:.2f} x", gain >= GOODPUT_AIM),
    ]


def _figures(one: Found) -> list[str]:
    return [
        f"{one.goodput:.2f}",
        f"{one.recomputed:.1%}",
        f"{one.loaded:.1%}",
        f"{one.resumed_p95_s:.2f} s",
        f"{one.ttft_p95_s:.2f} s",
    ]


def written(found: Sequence[Found], calm: Sequence[Found], rate: float, minutes: float) -> str:
    """Return the page."""
    rows = [[one.tiers, *_figures(one)] for one in found]
    others = [[one.tiers, one.retention, *_figures(one)] for one in calm]
    titles = [
        "goodput, sessions/s",
        "history computed again",
        "loaded",
        f"TTFT P95 after {LONG_PAUSE_S:.0f} s",
        "TTFT P95",
    ]
    verdicts = [[words, figure, "met" if met else "**missed**"] for words, figure, met in aims(found)]
    return PAGE.format(
        machine=machine(), model=MODEL, gpu=GPU, degree=DEGREE, trace=TRACE, context=CONTEXT, minutes=minutes,
        rate=rate, ttft=SLO.ttft_s, itl=1e3 * SLO.itl_s, seeds=len(SEEDS), resumed=found[0].resumed,
        aims=table([f"{HALF_A_NODE} against {BASE}", "found", ""], verdicts), rows=table(["KV", *titles], rows),
        retentions=table(["KV", "retention", *titles], others), calm=CALM * rate,
        idle=LOADED_IDLE_S, window=LOADED_BEFORE_S, share=returning(LOADED_IDLE_S, LOADED_BEFORE_S),
    )  # fmt: skip


PAGE = """# KV below the GPUs' memory

`make bench-kv` writes this page. Simulated; machine: {machine}.

{aims}

{rows}

Shares and latencies at {rate:.2f} sessions/s, the goodput of the GPUs alone; {resumed} rounds came after a long pause.

## Which KV is evicted

{retentions}

Shares and latencies at {calm:.2f} sessions/s. `lru` evicts the least recently used, `ttl` is Continuum's time to live,
and `value` evicts what is worth least (`weft_core.policies.retention`).

"Loaded in no time" is the most that loading KV ahead of its round could bring, with foresight. By the recorded pauses
there is none: of the sessions that are idle for {idle:.0f} s, {share:.0%} return in the {window:.0f} s that follow.

## Method

- Two prefill and two decode workers of {model} on {degree} {gpu} each; policy `weft`, mode `ia`. Goodput: sessions per
  second of which 90 % meet the SLO, TTFT {ttft:g} s and mean ITL {itl:g} ms; {seeds} seeds.
- Sessions of the trace `{trace}` up to {context:,} tokens, with the pauses that were recorded, arrive for
  {minutes:.0f} minutes; those of the first 30 % are not counted.
- Each decode worker has the tiers by itself, with the bandwidths of `weft_core.kv_tiers`. A session's KV is written
  through when a round ends, by `value` when it is evicted and never for a session that ended; what was evicted from the
  GPUs is loaded before its next round is routed.
- A DGX H200 has 2 TiB of host memory and two such workers: the aims are of 1 TiB. 200 GiB hold the KV of 20 sessions of
  30,000 tokens, and more than a hundred pause at a time.
"""


if __name__ == "__main__":
    main()
