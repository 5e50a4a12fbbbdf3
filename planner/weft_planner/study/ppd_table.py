"""Learn policy ``ppd``'s offline table for a layout from the simulator: every later round both ways, cell by cell.

At three rates, each round runs once on a prefill worker (x = 0) and once on its decode worker (x = 1), all else equal.
The classes are cut where the workload's own rounds divide into thirds, so that every cell has its share of them; a cell
with few rounds takes the figures of its rate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from weft_core.policies.ppd_cells import CELLS, CLASSES, cell_names
from weft_core.policies.routing.ppd import PARAMETERS as PPD
from weft_planner.simulation.layout import PolicyChoice, SimulationError
from weft_planner.simulation.loading import load_simulator
from weft_planner.simulation.outcome import Outcome
from weft_planner.simulation.records import SERVED
from weft_planner.stages import Progress
from weft_planner.study.scenario import Scenario
from weft_planner.workload.distributions import Floats
from weft_planner.workload.sessions import Ints

FACTORS = (0.4, 1.0, 1.6)
"""Of the planned rate, one in each class."""
BORDERS = (0.7, 1.3)
"""Of the planned rate, between them."""
LEAST = 30
"""Rounds that a cell of its own needs."""


@dataclass(frozen=True, slots=True)
class PpdTable:
    """``params`` are the policy's, its weights aside; ``rounds`` how many rounds each cell was learned from."""

    params: Mapping[str, float]
    rounds: Mapping[str, int]


def learn_table(scenario: Scenario, *, rate: float, seeds: int, progress: Progress) -> PpdTable:
    """Return the table of a layout at ``rate`` sessions per second; the scenario's own policy does not count.

    Raises:
        CostProfileError: the profile lacks a degree or transfer that the layout needs.
        SimulationError: the layout is colocated, or contradicts itself.
    """
    if scenario.candidate.kind == "colocated":
        raise SimulationError("layout: a colocated one has no other worker to prefill on; give one that has")
    load_simulator(progress)
    total = 2 * len(FACTORS) * seeds
    done = 0
    runs: list[list[tuple[Outcome, Outcome]]] = []
    for factor in FACTORS:
        pairs = []
        for seed in range(seeds):
            both = []
            for x in (0.0, 1.0):
                progress("learning ppd's table", done, total)
                both.append(_with_share(scenario, x).run(factor * rate, seed))
                done += 1
            pairs.append((both[0], both[1]))
        runs.append(pairs)
    progress("learning ppd's table", total, total)
    return _table(runs, rate)


def _with_share(scenario: Scenario, x: float) -> Scenario:
    own = scenario.candidate.policy
    policy = PolicyChoice(route="fixed-x", mode="", binding=own.binding, order="fcfs", params={"x": x})
    return replace(scenario, candidate=replace(scenario.candidate, policy=policy))


def _table(runs: list[list[tuple[Outcome, Outcome]]], rate: float) -> PpdTable:
    some = runs[1][0][0]
    later = _later(some)
    params = {
        **_borders("context_short", "context_long", some.sample.history[later]),
        **_borders("ratio_decode", "ratio_prefill", _ratio(some)[later]),
        "rate_low": BORDERS[0] * rate,
        "rate_high": BORDERS[1] * rate,
    }
    rounds: dict[str, int] = {}
    names = cell_names()
    for r, pairs in enumerate(runs):
        figures = [_figures(local, remote, params) for remote, local in pairs]
        cells, ttft, tpot, weight = (np.concatenate([one[k] for one in figures], axis=-1) for k in range(4))
        whole = relative_changes(ttft, tpot, weight)
        for at in range(r, CELLS, CLASSES):
            mine = cells == at // CLASSES
            rounds[names[at]] = int(mine.sum())
            own = rounds[names[at]] >= LEAST
            fall, rise = relative_changes(ttft[:, mine], tpot[:, mine], weight[:, mine]) if own else whole
            params[f"ttft_fall.{names[at]}"] = fall
            params[f"tpot_rise.{names[at]}"] = rise
    known = {parameter.name: parameter for parameter in PPD}
    held = {name: float(f"{min(max(value, known[name].low), known[name].high):.4g}") for name, value in params.items()}
    return PpdTable(params=held, rounds=rounds)


def _later(outcome: Outcome) -> Ints:
    """Return which rounds are not their session's first."""
    first = np.zeros(outcome.sample.rows, bool)
    first[outcome.sample.first_row] = True
    return np.flatnonzero(~first)


def _ratio(outcome: Outcome) -> Floats:
    """Return new tokens per expected answer token: the mean answer of the round's class, which is what is known."""
    kinds = outcome.sample.session_class[outcome.sample.session]
    mean = np.array([outcome.sample.tokens[kinds == kind].mean() for kind in range(int(kinds.max()) + 1)])
    ratio: Floats = outcome.sample.increment / np.maximum(mean[kinds], 1.0)
    return ratio


def _borders(low: str, high: str, values: Floats) -> dict[str, float]:
    thirds = np.quantile(values, (1 / 3, 2 / 3)) if len(values) else np.array([1.0, 2.0])
    return {low: float(thirds[0]), high: float(thirds[1])}


def _figures(local: Outcome, remote: Outcome, params: Mapping[str, float]) -> tuple[Ints, Floats, Floats, Floats]:
    """Return cell, TTFT, TPOT and gaps (remote, local) of the later rounds that both runs served and count."""
    rows = _later(local)
    rows = rows[(local.state[rows] == SERVED) & (remote.state[rows] == SERVED) & local.counted[rows]]
    context = np.searchsorted([params["context_short"], params["context_long"]], local.sample.history[rows], "right")
    shape = np.searchsorted([params["ratio_decode"], params["ratio_prefill"]], _ratio(local)[rows], "right")
    both = (remote, local)
    return (
        context * CLASSES + shape,
        np.stack([one.ttft[rows] for one in both]),
        np.stack([one.itl_mean[rows] for one in both]),
        np.stack([one.gaps[rows].astype(float) for one in both]),
    )


def relative_changes(ttft: Floats, tpot: Floats, gaps: Floats) -> tuple[float, float]:
    """Return the share by which TTFT falls and TPOT rises from remote (row 0) to local (row 1); 0 without rounds."""
    if not ttft.shape[1]:
        return 0.0, 0.0
    remote, local = ttft.mean(axis=1)
    before, after = (tpot * gaps).sum(axis=1) / np.maximum(gaps.sum(axis=1), 1.0)
    return float(1 - local / max(remote, 1e-9)), float(after / max(before, 1e-9) - 1) if before > 0 else 0.0
