"""Sum full runs up into what a plan states: latencies, attainment, use of each group, KV headroom, cost and limits."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import MappingProxyType

import numpy as np

from weft_core.cost import CostProfile
from weft_core.plan import PlannedGroup, Prediction
from weft_core.prediction import UNBOUNDED, Estimate, GroupUse, LatencyQuantiles, Limit
from weft_core.slo import Reading
from weft_planner.evaluation.trials import reading_of
from weft_planner.request.reading import Request
from weft_planner.simulation.outcome import Outcome
from weft_planner.simulation.records import SERVED
from weft_planner.simulation.statistics import READINGS, attainment, estimate
from weft_planner.workload.distributions import Floats

DIGITS = 6
"""A microsecond of latency, a millionth of a share: more digits would only pretend to be known."""


def predict(
    request: Request,
    groups: Sequence[PlannedGroup],
    outcomes: Sequence[Outcome],
    profiles: Mapping[str, CostProfile],
    *,
    goodput: Estimate | None = None,
    carried: Mapping[PlannedGroup, float] = MappingProxyType({}),
    overloaded: bool = False,
) -> Prediction:
    """Return the prediction of one layout from its full runs at the workload's rate.

    ``carried`` is the share of what a group could carry that the load takes, where it is known: a decode worker always
    has a step to do, so the time that it is busy says little. ``overloaded``: queues grow without end, and so do TTFTs.
    """
    slo = request.slo
    waits = [np.full_like(o.ttft, math.inf) if overloaded else o.ttft for o in outcomes]
    ttft = [w[o.counted] for w, o in zip(waits, outcomes, strict=True)]
    first = [w[o.counted & _first_rounds(o)] for w, o in zip(waits, outcomes, strict=True)]
    later = [w[o.counted & ~_first_rounds(o)] for w, o in zip(waits, outcomes, strict=True)]
    itl = [o.itl_mean[o.counted & (o.state == SERVED) & (o.gaps > 0)] for o in outcomes]
    reading = reading_of(request)
    attained = {r: [0.0] * len(outcomes) if overloaded else _shares(outcomes, r) for r in READINGS}
    use = group_use(groups, outcomes, carried)
    full = _quantile(ttft, slo.percentile), _quantile(itl, slo.percentile)
    per_hour = cost_per_hour(request, groups)
    decode = [u.kv_peak for u in use if u.role != "prefill"]
    return Prediction(
        ttft_p95_s=full[0],
        itl_p95_s=full[1],
        ttft_mean_s=_mean(ttft),
        itl_mean_s=_mean(itl),
        gpus=sum(group.gpus for group in groups),
        slo_met=fmean(attained[reading]) >= slo.attainment,
        source="simulation",
        ttft=_quantiles(ttft),
        ttft_first=_quantiles(first),
        ttft_later=_quantiles(later),
        itl=_quantiles(itl),
        attainment=_rounded(estimate(attained[reading]), most=1.0),
        reading=reading.name,
        readings={r.name: _figure(fmean(shares)) for r, shares in attained.items()},
        goodput=None if goodput is None else _rounded(goodput),
        use=use,
        kv_headroom=_figure(max(0.0, 1 - max(decode, default=0.0))),
        local_share=_figure(fmean(o.local_share if o.local_share == o.local_share else 0.0 for o in outcomes)),
        cost_per_hour=None if per_hour is None else _figure(per_hour),
        cost_per_million_tokens=None if per_hour is None else _figure(per_hour / 3600 / _tokens_per_s(outcomes) * 1e6),
        limits=_limits(request, outcomes, use, profiles, latencies=full),
    )


def _shares(outcomes: Sequence[Outcome], reading: Reading) -> list[float]:
    """Return each run's attainment; a run that counted nothing held nothing."""
    return [0.0 if math.isnan(share := attainment(o, reading)) else share for o in outcomes]


def group_use(
    groups: Sequence[PlannedGroup], outcomes: Sequence[Outcome], carried: Mapping[PlannedGroup, float]
) -> tuple[GroupUse, ...]:
    """Return how much each group is used, the mean over workers and runs, and its fullest worker's peak KV share."""
    found = []
    for group in groups:
        busy, peak = [], []
        for outcome in outcomes:
            for i, worker in enumerate(outcome.layout.workers):
                if (outcome.layout.role(i), worker.degree, worker.pool) == (group.role, group.degree, group.pool):
                    busy.append(float(outcome.busy[i]))
                    peak.append(float(outcome.kv_peak[i] / outcome.kv_capacity[i]))
        used = carried.get(group, fmean(busy) if busy else 0.0)
        found.append(GroupUse(group.role, group.degree, group.pool, _figure(used), _figure(max(peak, default=0.0))))
    return tuple(found)


def cost_per_hour(request: Request, groups: Sequence[PlannedGroup]) -> float | None:
    """Return what the groups' GPUs cost for an hour, None when a pool has no price."""
    prices = {pool.name: pool.price_per_gpu_hour for pool in request.capacity.pools}
    total = 0.0
    for group in groups:
        price = prices[group.pool]
        if price is None:
            return None
        total += price * group.gpus
    return total


def _limits(
    request: Request,
    outcomes: Sequence[Outcome],
    use: Sequence[GroupUse],
    profiles: Mapping[str, CostProfile],
    *,
    latencies: tuple[float, float],
) -> tuple[Limit, ...]:
    """Return what a layout runs into, most used first."""
    found = [Limit("compute", u.utilisation, u.role) for u in use]
    found += [Limit("kv", u.kv_peak, u.role) for u in use if u.role != "prefill"]
    found.append(Limit("link", _figure(fmean(link_share(o, profiles) for o in outcomes))))
    for kind, latency, threshold in (
        ("ttft", latencies[0], request.slo.ttft),
        ("itl", latencies[1], request.slo.itl),
    ):
        share = latency / threshold
        found.append(Limit("ttft" if kind == "ttft" else "itl", _figure(min(share, UNBOUNDED))))
    return tuple(sorted(found, key=lambda limit: -limit.share))


def link_share(outcome: Outcome, profiles: Mapping[str, CostProfile]) -> float:
    """Return the share of the time that the busier side's network cards move KV, evenly over its workers."""
    window = outcome.sample.window * (1 - outcome.options.cool_down)
    tokens = outcome.read_tokens + outcome.back_tokens + outcome.moved_tokens
    shares = [0.0]
    for workers in (outcome.layout.prefill, outcome.layout.decode):
        rate = 0.0  # tokens per second of all cards of this side
        for worker in workers:
            cost = profiles[worker.pool].transfers.get((worker.degree, worker.degree, "inter-node"))
            rate += 1 / cost.per_token if cost is not None and cost.per_token > 0 else 0.0
        if rate > 0:
            shares.append(tokens / rate / window)
    return max(shares)


def _tokens_per_s(outcomes: Sequence[Outcome]) -> float:
    """Return the new prompt tokens and answer tokens that are offered in a second."""
    sample = outcomes[0].sample
    return max(1e-9, sample.rate * sample.per_session(sample.increment + sample.tokens))


def _first_rounds(outcome: Outcome) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    flags = np.zeros(outcome.sample.rows, dtype=np.bool_)
    flags[outcome.sample.first_row] = True
    return flags


def _quantiles(runs: Sequence[Floats]) -> LatencyQuantiles | None:
    return LatencyQuantiles(_quantile(runs, 50), _quantile(runs, 95)) if any(len(run) for run in runs) else None


def _quantile(runs: Sequence[Floats], percent: float) -> float:
    """Return a percentile over the rounds of all runs; without rounds there is nothing to be late, so 0."""
    values = np.concatenate(runs)
    # "higher" never interpolates towards an infinite value, which would be no number.
    return _figure(float(np.percentile(values, percent, method="higher"))) if len(values) else 0.0


def _mean(runs: Sequence[Floats]) -> float:
    values = np.concatenate(runs)
    return _figure(float(values.mean())) if len(values) else 0.0


def _figure(value: float) -> float:
    return round(value, DIGITS)


def _rounded(of: Estimate, *, most: float = math.inf) -> Estimate:
    """Return an estimate whose interval stays between 0 and what is possible at most."""
    return Estimate(_figure(of.value), _figure(max(0.0, of.low)), _figure(min(most, of.high)))
