"""Run one simulation and collect its outcome."""

import math
import threading
from collections.abc import Mapping, Sequence

import numpy as np

from weft_core.cost import CostProfile
from weft_planner.simulation import records
from weft_planner.simulation.inputs import check_sample, initial_state
from weft_planner.simulation.layout import Layout, PolicyChoice, SimulationError, SloClass, check_slo
from weft_planner.simulation.options import Options
from weft_planner.simulation.outcome import Outcome, Timeline
from weft_planner.simulation.records import NEVER_ARRIVED, SERVED, UNPLACED
from weft_planner.workload.sessions import Sample

_loading = threading.Lock()


def simulate(
    sample: Sample,
    layout: Layout,
    costs: Mapping[str, CostProfile],
    policy: PolicyChoice,
    slo: Sequence[SloClass],
    *,
    options: Options = Options(),  # noqa: B008 - frozen, and its defaults are the documentation
    seed: int = 0,
) -> Outcome:
    """Serve a sample's sessions on a layout and return every round's latencies; ``costs`` by pool, ``slo`` by class.

    A worker that runs several batches at a time counts as so many: see ``Layout.of_batches``, which the outcome has.
    Deterministic: the same arguments give the same bytes. The seed drives what is not in the sample: random orders,
    prediction noise, retransmissions. The first call of a process loads or compiles the event loop.

    Raises:
        SimulationError: something named does not exist, or contradicts the layout.
        CostProfileError: a profile lacks a degree or a transfer that the layout needs.
    """
    check_sample(sample)
    batches = layout.of_batches()
    if batches is not layout and options.changes:
        raise SimulationError("changes: workers of several batches keep their roles; give layouts of plain degrees")
    layout = batches
    classes = check_slo(slo, int(sample.session_class.max(initial=0)) + 1)
    state = initial_state(sample, layout, costs, policy, classes, options=options, seed=seed)
    run_events(state, policy, options)
    return _outcome(state, sample, layout, policy, classes, options, seed)


def run_events(state: records.SimulationState, policy: PolicyChoice, options: Options) -> None:
    """Run a state's events to the last one; the records then hold what happened.

    Raises:
        SimulationError: the heap of events overflowed, which no input should be able to cause.
    """
    from weft_planner.simulation.event_loop import run  # numba is loaded by the first run, not by an import
    from weft_planner.simulation.policies import binding_code, order_code, routing_code
    from weft_planner.simulation.state_type import addresses

    _first_events(state, options)
    rules = state.rules[0]
    with _loading:  # loaded twice, the code that is not kept would be freed while it runs
        rules["decide"] = routing_code(policy.route).address
        rules["choose"] = order_code(policy.order).address
        rules["place"] = binding_code(policy.binding).address
    run(addresses(state))
    if state.totals["error"][0] == records.FULL_HEAP:
        raise SimulationError("events: more were pending at once than sessions explain; please report the inputs")


def _first_events(state: records.SimulationState, options: Options) -> None:
    """Set the first arrival, the changes and the first tick, in order of time: a sorted array is a heap."""
    due = [(float(state.sessions["arrival"][0]), records.ARRIVE, int(state.sessions["first_row"][0]))]
    due += [(c.at, records.CHANGE, number) for number, c in enumerate(options.changes) if c.at > -math.inf]
    if len(state.ticks):
        due.append((0.0, records.TICK, 0))
    due.sort(key=lambda event: event[0])
    for sequence, (time, kind, subject) in enumerate(due):
        state.events[sequence] = (time, sequence, kind, subject)
    state.totals["heap"] = state.totals["sequence"] = len(due)


def _outcome(
    state: records.SimulationState,
    sample: Sample,
    layout: Layout,
    policy: PolicyChoice,
    slo: tuple[SloClass, ...],
    options: Options,
    seed: int,
) -> Outcome:
    rows, workers, totals, rules = state.rows, state.workers, state.totals[0], state.rules[0]
    how = rows["state"].astype(np.int64)
    arrived = ~np.isnan(rows["arrival"])
    how[arrived & (how == NEVER_ARRIVED)] = UNPLACED
    served = how == SERVED
    gaps = np.where(served, rows["gaps"], 0)
    some = np.maximum(gaps, 1)
    observed = max(rules["counted_until"] - rules["counted_from"], 1e-12)
    begins = sample.arrival[sample.session]
    return Outcome(
        sample=sample,
        layout=layout,
        policy=policy,
        slo=slo,
        options=options,
        seed=seed,
        arrival=rows["arrival"].copy(),
        ttft=np.where(served, rows["ttft"], math.inf),
        finished=np.where(served, rows["finished"], math.inf),
        itl_mean=np.where(gaps > 0, (rows["finished"] - rows["first_token_at"]) / some, 0.0),
        itl_over=np.where(gaps > 0, rows["late_gaps"] / some, 0.0),
        itl_max=np.where(gaps > 0, rows["max_gap"], 0.0),
        gaps=gaps,
        route=rows["route"].astype(np.int64),
        reason=rows["reason"].astype(np.int64),
        state=how,
        counted=sample.whole[sample.session] & (begins >= rules["counted_from"]) & (begins <= rules["counted_until"]),
        busy=workers["busy"] / observed,
        kv_peak=workers["kv_peak"].copy(),
        kv_capacity=workers["kv_capacity"].copy(),
        queue_mean=workers["queue_area"] / observed,
        events=int(totals["events"]),
        cut_short=bool(totals["events"] >= totals["event_limit"]),
        end=float(totals["now"]),
        read_tokens=float(totals["read_tokens"]),
        back_tokens=float(totals["returned_tokens"]),
        moved_tokens=float(totals["moved_tokens"]),
        loaded_tokens=float(totals["loaded"]),
        recomputed_tokens=float(totals["recomputed"]),
        preemptions=int(totals["preemptions"]),
        evictions=int(totals["evictions"]),
        retransmissions=int(totals["resent"]),
        timeline=_timeline(state),
    )


def _timeline(state: records.SimulationState) -> Timeline | None:
    count = int(state.totals["ticks"][0])
    if not len(state.ticks):
        return None
    ticks = state.ticks[:count]
    return Timeline(
        at=np.arange(count, dtype=np.float64) * float(state.totals["tick_s"][0]),
        queued=ticks["queued"].copy(),
        batch=ticks["batch"].copy(),
        kv=ticks["kv"].copy(),
    )
