"""Build the initial state of the event loop from sessions, layout, cost profiles and policies."""

import math
from collections.abc import Mapping

import numpy as np

from weft_core.cost import LINKS, CostProfile, Link
from weft_core.kv_tiers import TIER_NAMES
from weft_core.layouts import WorkerRole
from weft_core.parallelism import Degree, parallelism_of
from weft_core.policies.inputs import MAX_WINDOW
from weft_core.policies.policy import PolicyError
from weft_core.policies.registry import BINDINGS, DEFAULT_CAP, MODES, ORDERS, POLICIES, parameters
from weft_core.policies.retention import BUCKETS, GAPS
from weft_core.policies.routing import colocated
from weft_core.policies.routing.weft import IMD, ITL_STATISTIC, WHOLE_OR_CHUNKED
from weft_core.timing import PREFILL_FIELDS, STEP_FIELDS, prefill_seconds, step_seconds
from weft_core.transfers import transfer_between
from weft_planner.simulation import records
from weft_planner.simulation.layout import Layout, PolicyChoice, SimulationError, SloClass
from weft_planner.simulation.options import LINKS as LINK_MODES
from weft_planner.simulation.options import Options
from weft_planner.workload.distributions import Floats
from weft_planner.workload.sessions import Sample

LARGEST_RING = 1 << 20
PEAKS = 128
"""Largest gaps remembered per worker: they fall with time, so more than a hundred are never seen."""
ROLES = {"off": records.OFF, "prefill": records.PREFILL, "decode": records.DECODE}

EVENTS_PER_TOKEN = 4
"""A lone sequence takes one step for each token; recomputing what was preempted may repeat a few."""


def event_limit(sample: Sample) -> int:
    """Return the number of events after which a run is cut short: far more than any run that makes progress needs."""
    return 100_000 + 100 * sample.rows + EVENTS_PER_TOKEN * int(sample.tokens.sum())


def initial_state(
    sample: Sample,
    layout: Layout,
    costs: Mapping[str, CostProfile],
    policy: PolicyChoice,
    slo: tuple[SloClass, ...],
    *,
    options: Options,
    seed: int,
) -> records.SimulationState:
    """Build the state in which a run begins.

    Raises:
        SimulationError: something named does not exist, or the sessions cannot be simulated.
        CostProfileError: a profile lacks a degree or a transfer that the layout needs.
    """
    workers = len(layout.workers)
    rules = rules_of(sample, layout, policy, slo, options)
    params = params_of(policy)
    fleet = workers_of(layout, costs, options)
    rules["helpers"] = workers if options.changes or fleet["both"].any() else len(layout.prefill)
    prefill = _padded([costs[w.pool].prefill_figures(w.degree) for w in layout.workers], PREFILL_FIELDS)
    step = _padded([costs[w.pool].step_figures(w.degree) for w in layout.workers], STEP_FIELDS)
    if policy.route == "weft":
        rules["itl_statistic"] = int(params[ITL_STATISTIC])
    elif policy.route == "colocated":
        rules["itl_statistic"] = int(params[colocated.ITL_STATISTIC])
        rules["delays"] = params[colocated.DELAY] > 0
    rules["ring"] = _ring(prefill, step, options.window_s) if rules["reads_windows"][0] else 1
    slots = int(rules["slots"][0])
    most_events = 4 * sample.sessions + 4 * workers + len(options.changes) + 1024
    most_events += sample.rows if options.retention == "ttl" else 0
    most_events += sample.sessions if options.tiers else 0
    totals = np.zeros(1, records.TOTALS)
    totals["random"] = 1 + seed % 2147483645
    totals["net_at"] = math.inf
    totals["tick_s"] = options.timeline_s
    totals["event_limit"] = event_limit(sample)
    totals["rate_from"] = sample.arrival[0]
    ticks = math.floor(sample.window / options.timeline_s) + 1 if options.timeline_s > 0 else 0
    for name, length in (
        ("sessions", sample.sessions),
        ("events", most_events),
        ("ticks", ticks),
        ("params", len(params)),
        ("prefill_figures", prefill.shape[1]),
        ("step_figures", step.shape[1]),
    ):
        rules[name] = length
    changes = np.zeros(len(options.changes), records.CHANGES)
    for at, change in enumerate(options.changes):
        changes[at] = (change.at, change.delay_s, change.worker, ROLES[change.to], change.sessions == "send")
    lists = np.zeros(1 + records.SLOT * workers + workers * slots, records.LIST)
    lists["kind"] = records.SLOT
    lists["kind"][: 1 + records.SLOT * workers] = [records.WAITING, *np.repeat(np.arange(records.SLOT), workers)]
    lists["first"] = lists["last"] = -1
    return records.SimulationState(
        rules=rules,
        totals=totals,
        classes=classes_of(sample, slo),
        rows=rows_of(sample, options, seed),
        sessions=sessions_of(sample, options, seed),
        workers=fleet,
        tiers=tiers_of(layout, costs, options),
        per_class=np.zeros((workers, len(slo)), records.PER_CLASS),
        events=np.zeros(most_events, records.EVENTS),
        links=links_of(layout, costs, options),
        windows=np.zeros((workers, 2), records.WINDOW),
        samples=np.zeros((2 * workers, int(rules["ring"][0])), records.SAMPLE),
        peaks=np.zeros((workers, PEAKS), records.PEAKS),
        transfers=np.zeros(sample.sessions + 1, records.TRANSFERS),
        changes=changes,
        ticks=np.zeros((ticks, workers), records.TICKS),
        after=np.empty((sample.rows, records.LISTS), np.int32),
        before=np.empty((sample.rows, records.LISTS), np.int32),
        lists=lists,
        dirty=np.zeros(workers, np.int64),
        prefill=prefill,
        step=step,
        params=np.array(params, np.float64),
        task=np.zeros(1, records.TASK),
        local=np.zeros(1, records.LOCAL_WORKER),
        remote=np.zeros(workers, records.REMOTE_WORKER),
        stages=np.full((workers, int(fleet["stages"].max())), -math.inf),
        recent_gaps=np.zeros((len(slo), GAPS)),
        ordered_gaps=np.zeros((len(slo), GAPS)),
        returns=np.zeros((len(slo), BUCKETS + 1)),
        **_columns(workers + 1, "costs", "kv_free", "kv_capacity", "bound", "prefix_hit", "load"),
        **_columns(workers, "order", "candidates", "places", "cached", "sent"),
        **_columns(sample.sessions, "gap_sums", "gap_counts", "gaps_left", "seconds", "enqueued", "ttft_slo"),
        **_columns(sample.sessions, "postponed", "lost", "queued"),
        **_columns(MAX_WINDOW, "head"),
    )


def _columns(length: int, *names: str) -> dict[str, records.Numbers]:
    return {name: np.zeros(length, records.TABLES[name][0]) for name in names}


def check_sample(sample: Sample) -> None:
    """Refuse sessions that no engine could serve.

    Raises:
        SimulationError: there is none, they are not in order of arrival, or a length or time is out of range.
    """
    if sample.sessions == 0:
        raise SimulationError("sample: it holds no session; draw a longer window")
    for name, values, least in (
        ("arrival", sample.arrival, -math.inf),
        ("history", sample.history, 0.0),
        ("increment", sample.increment, 1.0),
        ("tokens", sample.tokens, 1.0),
        ("gap", sample.gap, 0.0),
        ("prefix", sample.prefix, 0.0),
    ):
        if not (np.isfinite(values).all() and (values >= least).all()):
            at = int(np.flatnonzero(~(np.isfinite(values) & (values >= least)))[0])
            raise SimulationError(f"sample.{name}[{at}]: {values[at]!r} is not a finite figure of at least {least:g}")
    if (np.diff(sample.arrival) < 0).any():
        at = int(np.flatnonzero(np.diff(sample.arrival) < 0)[0]) + 1
        raise SimulationError(f"sample.arrival[{at}]: earlier than the session before it; sort sessions by arrival")


def params_of(policy: PolicyChoice) -> tuple[float, ...]:
    """Return the routing rule's parameter vector.

    Raises:
        SimulationError: there is no such rule, mode or parameter.
    """
    try:
        return parameters(policy.route, policy.mode or "imd", policy.params)
    except PolicyError as error:
        raise SimulationError(f"policy: {error}") from None


def slices(policy: PolicyChoice, options: Options) -> bool:
    """Return whether local prefills run in chunks when the policy does not say."""
    if options.chunked is not None:
        return options.chunked
    return policy.route == "weft" and MODES.get(policy.mode) in (IMD, WHOLE_OR_CHUNKED)


def share_of_slices(policy: PolicyChoice, options: Options) -> float:
    """Return the share of the ITL SLO that a step with a chunk may take.

    Raises:
        SimulationError: the policy's share is not above 0.
    """
    share = policy.chunk_share
    if share is None:
        return options.chunk_fraction
    if not 0 < share < math.inf:
        raise SimulationError(f"policy: chunk_share {share!r} is not a finite share above 0")
    return share


def rules_of(
    sample: Sample, layout: Layout, policy: PolicyChoice, slo: tuple[SloClass, ...], options: Options
) -> records.Records:
    """Return the one record of rules and options."""
    for name, value, known in (
        ("route", policy.route, POLICIES),
        ("binding", policy.binding, BINDINGS),
        ("order", policy.order, ORDERS),
    ):
        if value not in known:
            raise SimulationError(f"policy: {name} {value!r} is none of {', '.join(known)}")
    if not 1 <= policy.window <= MAX_WINDOW:
        raise SimulationError(f"policy: window {policy.window} is not between 1 and {MAX_WINDOW}")
    rules = np.zeros(1, records.RULES)
    rules["chunk_fraction"] = share_of_slices(policy, options)
    rules["slice_turn"] = options.slice_turn_s
    rules["shared_work"] = options.shared_work
    rules["least_hit"] = options.min_cache_hit_ratio
    rules["window_s"] = options.window_s
    rules["strictest_itl"] = min(c.itl_s for c in slo)
    rules["counted_from"] = options.warm_up * sample.window
    rules["counted_until"] = (1 - options.cool_down) * sample.window
    rules["rearranges"] = ORDERS[policy.order].rearranges
    rules["window"] = policy.window
    rules["cap"] = DEFAULT_CAP if policy.cap is None else policy.cap
    rules["slices"] = slices(policy, options)
    rules["chunk_limit"] = options.chunk_limit
    rules["chunk_floor"] = options.chunk_floor
    rules["prefill_tokens"] = options.prefill.max_tokens or records.NO_LIMIT
    rules["decode_tokens"] = options.decode.max_tokens or records.NO_LIMIT
    rules["links"] = LINK_MODES.index(options.links)
    rules["reads"] = options.history == "read" and POLICIES[policy.route].reads_history
    rules["pull"] = options.handover == "pull"
    rules["unreadable"] = (
        options.history == "recompute" and options.handover == "pull" and POLICIES[policy.route].reads_history
    )
    rules["caches"] = options.prefix_cache and (options.handover == "pull" or not POLICIES[policy.route].reads_history)
    rules["oracle"] = options.admission == "oracle"
    rules["tiers"] = bool(options.tiers)
    rules["evicts_tokens"] = options.evicts == "tokens"
    rules["keeps_ended"] = options.ended == "keep" and options.admission == "reserve"
    rules["ttl"] = options.retention == "ttl"
    rules["by_value"] = options.retention == "value"
    rules["on_eviction"] = options.retention == "value" or options.writes == "eviction"
    rules["reads_windows"] = POLICIES[policy.route].reads_windows
    rules["reads_order"] = POLICIES[policy.route].reads_order
    stalls_others = any(layout.role(worker) == "both" for worker in range(len(layout.workers)))
    unread = (MODES["remote-jsq"],) if stalls_others else (IMD, MODES["remote-jsq"])  # modes that predict no stall
    rules["reads_gaps"] = policy.route == "weft" and MODES.get(policy.mode) not in unread
    rules["peaks"] = PEAKS
    rules["slots"] = 1 << int(sample.tokens.max(initial=1)).bit_length()
    rules["workers"] = len(layout.workers)
    rules["classes"] = len(slo)
    return rules


def classes_of(sample: Sample, slo: tuple[SloClass, ...]) -> records.Records:
    """Return the session classes; the expected answer is the mean of what the class's rounds decode."""
    classes = np.zeros(len(slo), records.CLASSES)
    of_rows = sample.session_class[sample.session]
    for at, one in enumerate(slo):
        tokens = sample.tokens[of_rows == at]
        classes[at] = (one.ttft_s, one.itl_s, one.priority, tokens.mean() if len(tokens) else math.nan, 0)
    return classes


def rows_of(sample: Sample, options: Options, seed: int) -> records.Records:
    """Return the rounds with their random draws; a row has the same draws under every layout and policy."""
    rows = np.zeros(sample.rows, records.ROWS)
    rows["history"] = sample.history
    rows["increment"] = sample.increment
    rows["gap"] = sample.gap
    rows["session"] = sample.session
    rows["steps_left"] = np.maximum(sample.tokens, 1).astype(np.int64) - 1
    rows["noise"] = rows["chunk_noise"] = rows["read_sends"] = rows["back_sends"] = 1
    if options.prefill_noise_sigma or options.chunk_noise_sigma or options.retransmit_probability:
        rng = np.random.default_rng((seed, 0x5EED))
        rows["noise"] = np.exp(options.prefill_noise_sigma * rng.standard_normal(sample.rows))
        rows["chunk_noise"] = np.exp(options.chunk_noise_sigma * rng.standard_normal(sample.rows))
        for name in ("read_sends", "back_sends"):
            rows[name] = rng.geometric(1 - options.retransmit_probability, sample.rows)
    rows["arrival"] = math.nan
    rows["prefill_worker"] = -1
    rows["route"] = records.NOT_ROUTED
    rows["reason"] = -1
    return rows


def sessions_of(sample: Sample, options: Options, seed: int) -> records.Records:
    """Return the sessions; a hash of their names is as good as a random number."""
    sessions = np.zeros(sample.sessions, records.SESSION)
    sessions["arrival"] = sample.arrival
    sessions["prefix"] = sample.prefix if options.prefix_cache else 0.0
    sessions["reserve"] = sample.reserve
    sessions["first_row"] = sample.first_row
    sessions["kv_before"] = sample.history[sample.first_row]
    sessions["rounds"] = np.diff(np.append(sample.first_row, sample.rows))
    sessions["slo_class"] = sample.session_class
    sessions["bound"] = -1
    sessions["hash"] = np.random.default_rng((seed, 0x4A54)).random(sample.sessions)
    return sessions


def workers_of(layout: Layout, costs: Mapping[str, CostProfile], options: Options) -> records.Records:
    """Return the workers, in the roles that they have at the beginning."""
    fleet = np.zeros(len(layout.workers), records.WORKERS)
    firsts: dict[tuple[str, Degree], int] = {}
    for at, worker in enumerate(layout.workers):
        if worker.pool not in costs:
            raise SimulationError(f"costs: no profile for pool {worker.pool!r}; give one (there are {sorted(costs)})")
        fleet[at]["kv_capacity"] = costs[worker.pool].kv_capacity(worker.degree) // layout.parts_of(worker.degree)
        fleet[at]["costs_of"] = firsts.setdefault((worker.pool, worker.degree), at)
        fleet[at]["role"] = records.PREFILL if at < len(layout.prefill) else records.DECODE
        sequences = options.prefill.sequences_of_batch(worker.degree) or records.NO_LIMIT
        budget = options.prefill.max_tokens is not None
        fleet[at]["prefill_places"] = min(options.prefill_concurrency, sequences) if budget else 1
        parts = parallelism_of(worker.degree)
        fleet[at]["ranks"] = parts.dp
        fleet[at]["stages"] = parts.pp
        fleet[at]["alone"] = parts.batches == 1
        fleet[at]["first_batch"] = at - worker.batch
        fleet[at]["first_rank"] = at - worker.batch % fleet[at]["ranks"]
        fleet[at]["in_steps"] = budget or parts.batches > 1
        fleet[at]["decode_places"] = options.decode.sequences_of_batch(worker.degree) or records.NO_LIMIT
        fleet[at]["both"] = layout.role(at) == "both"
    for change in options.changes:
        if not 0 <= change.worker < len(fleet):
            raise SimulationError(f"changes: there is no worker {change.worker}; the layout has {len(fleet)}")
        if change.at == -math.inf:
            fleet[change.worker]["role"] = ROLES[change.to]
    fleet["target"] = fleet["role"]
    fleet["current"] = fleet["ahead"] = -1
    fleet["last_chosen"] = -1e9
    fleet["out_free"] = fleet["in_free"] = fleet["next_slice_at"] = -math.inf  # samples begin before time 0
    return fleet


def tiers_of(layout: Layout, costs: Mapping[str, CostProfile], options: Options) -> records.Records:
    """Return the tiers of every worker, in tokens; one that there is not holds nothing."""
    found = np.zeros((len(layout.workers), len(TIER_NAMES)), records.TIERS)
    for tier in options.tiers:
        for at, worker in enumerate(layout.workers):
            size = costs[worker.pool].kv_bytes_per_token
            one = found[at, TIER_NAMES.index(tier.name)]
            one["capacity"] = tier.capacity_tokens(size) // layout.parts_of(worker.degree)
            one["latency"] = tier.latency_s
            one["per_token"] = size / tier.bytes_per_s
    found["free_at"] = -math.inf
    return found


def links_of(layout: Layout, costs: Mapping[str, CostProfile], options: Options) -> records.Records:
    """Return T_kv between all workers that exchange KV; between two profiles the slower end counts.

    One of two that do prefills for the sessions of the other, unless sessions move.
    """
    links = np.zeros((len(layout.workers), len(layout.workers)), records.LINK)
    moves = bool(options.changes)
    alike: dict[tuple[str, Degree, int, WorkerRole], list[int]] = {}
    for at, worker in enumerate(layout.workers):
        alike.setdefault((worker.pool, worker.degree, worker.node, layout.role(at)), []).append(at)
    figures: dict[tuple[str, Degree, str, Degree, Link], tuple[float, float, float]] = {}
    for (source, n, node, role), sources in alike.items():
        for (destination, m, other, other_role), destinations in alike.items():
            if (sources == destinations and len(sources) == 1) or (role == other_role != "both" and not moves):
                continue
            near = node >= 0 and node == other and source == destination
            ends = (source, n, destination, m, LINKS[0] if near else LINKS[1])
            if ends not in figures:
                figures[ends] = _link(costs, *ends)
            links[np.ix_(sources, destinations)] = figures[ends]
    np.fill_diagonal(links, np.zeros((), records.LINK))
    return links


def _link(
    costs: Mapping[str, CostProfile], source: str, n: Degree, destination: str, m: Degree, link: Link
) -> tuple[float, float, float]:
    """Return (alpha, seconds per token, bytes per second) from a worker of degree n to one of degree m."""
    profile = costs[source]
    if costs[destination] is profile:
        profile.t_kv(1, source=n, destination=m, link=link)  # raises an error that names a missing entry
        cost = profile.transfers[n, m, link]
    else:
        cost = transfer_between(profile, costs[destination], source_degree=n, destination_degree=m, link=link)
    rate = profile.kv_bytes_per_token / cost.per_token if cost.per_token > 0 else math.inf
    return cost.alpha, cost.per_token, rate


def _padded(figures: list[tuple[float, ...]], fields: int) -> Floats:
    """Return one row of figures per worker; shorter ones repeat their first regime, which changes no maximum."""
    longest = max(len(row) for row in figures)
    return np.array([row + row[:fields] * ((longest - len(row)) // fields) for row in figures], np.float64)


def _ring(prefill: Floats, step: Floats, window_s: float) -> int:
    """Return how many samples a statistics window can hold: no prefill and no step is faster than an empty one."""
    least = min(
        min(prefill_seconds(tuple(row), 0.0, 1.0) for row in prefill.tolist()),
        min(step_seconds(tuple(row), 1.0, 1.0) for row in step.tolist()),
    )
    return min(LARGEST_RING, int(window_s / max(least, 1e-6)) + 2)
