"""Plan with a measured profile, deploy the plan as processes before the engines, replay sessions, and compare."""

import asyncio
import random
import string
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from bench.profile.engines import Pair
from bench.profile.figures import interval, mean, p95
from bench.profile.timing import GPU

from weft_core.cost import CostProfile
from weft_e2e.agreement.live import outcome_of
from weft_e2e.agreement.scenario import AgreementScenario
from weft_e2e.agreement.sessions import sessions_of
from weft_e2e.engines.command import tiny_service
from weft_e2e.local.ports import free_ports
from weft_e2e.replay.client import Deadlines, Target, replay
from weft_e2e.replay.records import RoundRecord
from weft_e2e_tests.local_runs import local_run
from weft_planner.profiling.knowledge import manifest
from weft_planner.simulation import Outcome, SloClass, summarise
from weft_planner.workload.traffic import Gap, Rounds, Tokens, Workload

POLICY = "always-remote"
"""Every round crosses both ways: what is compared are T_pre, T_kv and T_dec, and not a choice between routes."""
SEEDS = 10
FRAMING = (3, 4)
"""Tokens that the tiny model's chat template adds to a first and to a later prompt; its answers add none of them."""
SLO = SloClass(ttft_s=2.0, itl_s=0.2)
RATE = 0.25
_SETTLE_S = 3.0
_TAIL_S = 60.0
_WORKLOAD: dict[str, Any] = {
    "arrivalRate": RATE,
    "rounds": {"mean": 3, "cv": 0.3},
    "firstPrompt": {"mean": 700, "cv": 0.4},
    "increment": {"mean": 250, "cv": 0.4},
    "decode": {"mean": 24, "cv": 0.3},
    "gap": {"mean": "1s"},
}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of both sides in seconds: the value and its 95 % interval."""

    name: str
    predicted: tuple[float, float, float]
    measured: tuple[float, float, float]

    @property
    def off(self) -> float:
        """Return how far the measurement lies from the prediction, as a share of it."""
        return self.measured[0] / self.predicted[0] - 1


@dataclass(frozen=True, slots=True)
class Compared:
    """What came of a replay: rows to print, the plan that was deployed, sessions, rounds, and how busy it was."""

    rows: tuple[Row, ...]
    plan: str
    sessions: int
    rounds: int
    busy: str


def service(profile: CostProfile, folder: Path) -> tuple[Path, Path]:
    """Write the service and its profile, and return where."""
    document = tiny_service()
    found = manifest(profile, "tiny-measured")
    spec = document["spec"]
    spec["profile"] = {"ref": {"name": "tiny-measured"}}
    spec["slo"] = {"ttft": f"{SLO.ttft_s:g}s", "itl": f"{SLO.itl_s * 1e3:g}ms"}
    spec["workload"] = _WORKLOAD
    spec["capacity"]["pools"][0]["gpuType"] = GPU
    spec["routing"] = {"policy": POLICY}
    paths = folder / "service.yaml", folder / "profile.yaml"
    for path, body in zip(paths, (document, found), strict=True):
        path.write_text(yaml.safe_dump(body, sort_keys=False))
    return paths


def scenario(profile: CostProfile) -> AgreementScenario:
    """Return the plan's one prefill and one decode worker as the simulator takes them."""
    traffic = _WORKLOAD
    workload = Workload(
        arrival_rate=RATE,
        rounds=Rounds(**traffic["rounds"]),
        first_prompt=Tokens(**traffic["firstPrompt"]),
        increment=Tokens(**traffic["increment"]),
        decode=Tokens(**traffic["decode"]),
        gap=Gap(mean=1.0, cv=0.5),
        source="made up",
    )
    return AgreementScenario(slow=1.0, profile=profile, prefill=1, decode=1, workload=workload, slo=SLO)


def compared(pair: Pair, profile: CostProfile, folder: Path, *, rounds: int, seed: int = 3) -> Compared:
    """Deploy, replay and compare."""
    file, profile_file = service(profile, folder)
    told = scenario(profile)
    sample = told.sample(rate=RATE, rounds=rounds, seed=seed)
    predictions = told.predict(POLICY, sample, seeds=SEEDS)
    engines = [f"--engine=prefill={pair.prefill.url}", f"--engine=decode={pair.decode.url}"]
    words = ["--port", str(free_ports(1)[0]), *engines, "--profile", str(profile_file)]
    with local_run(folder / "router", *words, file=file) as run:
        run.wait_for("Ctrl-C ends it.")
        time.sleep(_SETTLE_S)  # the router finds out what the engines can do
        target = Target(run.url, "weft/tiny", run="bench-")
        deadline = float(sample.arrival[-1]) + _TAIL_S
        result = asyncio.run(
            replay(
                sessions_of(sample, FRAMING),
                target,
                filler=words_of,
                deadlines=Deadlines(round_s=deadline, silence_s=deadline, replay_s=deadline),
            )
        )
        plan = next((line for line in run.lines if line.startswith("Plan")), "")
    measured = outcome_of(result, predictions[0])
    busy = f"client late by {1e3 * result.load.lag_p99_s:.0f} ms at P99"
    return Compared(rows_of(predictions, measured, result.records), plan, sample.sessions, sample.rows, busy)


def rows_of(predictions: Sequence[Outcome], measured: Outcome, records: Sequence[RoundRecord]) -> tuple[Row, ...]:
    """Return the figures of both sides; measured intervals come from drawing sessions again, others from seeds."""
    summary = summarise(predictions)
    live = summarise([measured])
    ttft: dict[str, list[float]] = {}
    itl: dict[str, list[float]] = {}
    for record in records:
        ttft.setdefault(record.session, []).append(float(record.ttft_s or np.inf))
        if record.gaps_s:
            itl.setdefault(record.session, []).append(mean(record.gaps_s))
    guesses = {"P95 TTFT": summary.ttft.p95, "median TTFT": summary.ttft.p50, "mean ITL": summary.itl.mean}
    seen = {"P95 TTFT": live.ttft.p95, "median TTFT": live.ttft.p50, "mean ITL": live.itl.mean}
    spread = {"P95 TTFT": interval(ttft, p95), "median TTFT": interval(ttft, _middle), "mean ITL": interval(itl, mean)}
    return tuple(
        Row(name, (guess.value, guess.low, guess.high), (seen[name].value, *spread[name]))
        for name, guess in guesses.items()
    )


def _middle(values: Sequence[float]) -> float:
    return float(np.median(values))


def words_of(count: int, seed: int) -> str:
    """Return a text of so many tokens: the tiny model's are single characters."""
    dice = random.Random(seed)  # noqa: S311 - prompts, nothing secret
    return "".join(dice.choices(string.ascii_lowercase + " ", k=count))


def table(rows: Sequence[Row]) -> str:
    """Lay out predictions beside measurements, in milliseconds."""
    lines = ["| figure | predicted, ms | measured, ms | off |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.name} | {_words(row.predicted)} | {_words(row.measured)} | {row.off:+.0%} |" for row in rows]
    return "\n".join(lines)


def _words(figure: tuple[float, float, float]) -> str:
    value, low, high = (1e3 * part for part in figure)
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"
