"""Estimate what one phase gives at a layout: tau_pre(n, k) and tau_dec(n, k), by simulating that phase alone.

A worker that runs several batches at a time (``weft_core.parallelism``) counts as so many servers.

tau_pre is the SLO percentile of TTFT over all rounds when k prefill workers of degree n serve every prefill and
decoding never waits; tau_dec the percentile of the rounds' mean ITL when k decode workers of degree n serve every
decode and prefills never wait (PLANNING section 3, formulation A). A load that has no steady state is not
simulated: its latency is infinite and its utilisation says by how much it is too high.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft_core.cost import CostProfile
from weft_core.layouts import Role
from weft_core.parallelism import Degree, batches_of
from weft_planner.phases.decode import simulate_decode
from weft_planner.phases.prefill import simulate_prefill
from weft_planner.simulation.options import NO_LIMITS, StepLimits
from weft_planner.workload.distributions import Floats
from weft_planner.workload.sessions import WARM_UP, Sample

STEADY_LIMIT = 0.98
"""Utilisation from which a queue counts as unbounded: above it a finite window only shows the beginning of the end."""
SATURATED = 1.001
"""Within a thousandth of the queue-free latency more workers change nothing, so they need no simulation."""


@dataclass(frozen=True, slots=True)
class PhaseLatency:
    """A phase's latency percentile and mean in seconds, infinite without a steady state, and its utilisation."""

    quantile_s: float
    mean_s: float
    utilisation: float


@dataclass(frozen=True, slots=True)
class PhaseInputs:
    """What both phase models share: the sessions, the costs, the percentile and the best times of the other phase.

    ``pace`` is the fastest decode step of a lone sequence, ``prefill_s`` the fastest prefill of every round.
    ``prefill``, ``decode``: what the engines' steps may have. In the model of the prefill phase prompts do not share
    steps.
    """

    sample: Sample
    profile: CostProfile
    percentile: float
    pace: float
    prefill_s: Floats
    bidirectional: bool
    prefill: StepLimits = NO_LIMITS
    decode: StepLimits = NO_LIMITS

    @property
    def computed(self) -> tuple[Floats, Floats]:
        """Return (history read, tokens computed) of every round."""
        return _computed(self.sample, self.bidirectional)

    def service(self, degree: Degree) -> Floats:
        """Return the seconds that the prefill of every round takes on a worker of a degree."""
        history, increment = self.computed
        return prefill_seconds(
            self.profile, history=history, increment=increment, degree=degree, most=self.prefill.max_tokens
        )


def prefill_seconds(
    profile: CostProfile, *, history: Floats, increment: Floats, degree: Degree, most: int | None = None
) -> Floats:
    """Return T_pre of many tasks at once: ``CostProfile.t_pre`` over arrays, in steps of at most ``most`` tokens."""
    if most is None:
        return _step_seconds(profile, history, increment, degree)
    seconds = np.zeros_like(increment)
    done = 0.0
    while (left := np.flatnonzero(increment > done)).size:
        part = np.minimum(increment[left] - done, most)
        seconds[left] += _step_seconds(profile, history[left] + done, part, degree)
        done += most
    return seconds


def _step_seconds(profile: CostProfile, history: Floats, increment: Floats, degree: Degree) -> Floats:
    pairs = increment * (history + increment / 2)
    context = history + increment
    pieces = [
        (context >= piece.from_context)
        * (
            piece.alpha
            + piece.per_token * increment
            + piece.per_pair * pairs
            + piece.per_context_token * context
            + piece.experts_seconds * (1 - (1 - piece.expert_share) ** increment)
        )
        for piece in profile.degrees[degree].prefill
    ]
    seconds: Floats = np.max(np.stack(pieces), axis=0)
    return seconds


def phase_inputs(
    sample: Sample,
    pools: Mapping[str, tuple[CostProfile, Sequence[Degree]]],
    *,
    percentile: float,
    bidirectional: bool,
    prefill: StepLimits = NO_LIMITS,
    decode: StepLimits = NO_LIMITS,
) -> dict[str, PhaseInputs]:
    """Prepare the simulations of every pool, given its profile and degrees.

    The other phase is idealised as the fastest degree of any pool without any queue. Pools of one profile share one
    object.
    """
    history, increment = _computed(sample, bidirectional)
    context = float(sample.history.mean() + sample.increment.mean())
    fleet = [(profile, n) for profile, degrees in pools.values() for n in degrees]
    times = [
        prefill_seconds(profile, history=history, increment=increment, degree=n, most=prefill.max_tokens)
        for profile, n in fleet
    ]
    pace = min(profile.t_dec(batch=1, context=context, degree=n) for profile, n in fleet)
    best = np.min(np.stack(times), axis=0)
    by_profile: dict[int, PhaseInputs] = {}
    for profile, _ in pools.values():
        by_profile.setdefault(
            id(profile),
            PhaseInputs(
                sample,
                profile,
                percentile,
                pace=pace,
                prefill_s=best,
                bidirectional=bidirectional,
                prefill=prefill,
                decode=decode,
            ),
        )
    return {name: by_profile[id(profile)] for name, (profile, _) in pools.items()}


def _computed(sample: Sample, bidirectional: bool) -> tuple[Floats, Floats]:
    """Return (history read, tokens computed) per round; without bidirectional KV all of the context is computed."""
    if bidirectional:
        return sample.history, sample.increment
    return np.zeros_like(sample.history), sample.history + sample.increment


def prefill_latency(inputs: PhaseInputs, *, degree: Degree, counts: Sequence[int]) -> dict[int, PhaseLatency]:
    """Return tau_pre(degree, k) for each worker count k; never larger at more workers."""
    sample = inputs.sample
    history, increment = inputs.computed
    service = inputs.service(degree)
    read = _transfer_seconds(inputs.profile, history, degree)
    back = _transfer_seconds(inputs.profile, increment, degree)
    think = (sample.tokens - 1) * inputs.pace + sample.gap
    offered = sample.rate * sample.per_session(service)
    starts = sample.starts(inputs.prefill_s + think)
    observed = (starts >= WARM_UP * sample.window) & (starts <= sample.window)
    floor = _tau((read + service + back)[observed], inputs.percentile, 0.0)

    def at(k: int) -> PhaseLatency:
        servers = k * batches_of(degree)
        utilisation = offered / servers
        if utilisation >= STEADY_LIMIT:
            return PhaseLatency(math.inf, math.inf, utilisation)
        waits = simulate_prefill(sample, starts, service=service, read=read, back=back, think=think, workers=servers)
        return _tau(waits, inputs.percentile, utilisation)

    return _sweep(counts, at, floor)


def _transfer_seconds(profile: CostProfile, tokens: Floats, degree: Degree) -> Floats:
    """Return T_kv across nodes between workers of one degree: the slower link, and the other phase is not known yet."""
    costs = profile.transfers.get((degree, degree, "inter-node"))
    if costs is None:
        profile.t_kv(1, source=degree, destination=degree)  # raises the error that names the missing row
        return np.zeros_like(tokens)
    return np.where(tokens > 0, costs.alpha + costs.per_token * tokens, 0.0)


def decode_latency(inputs: PhaseInputs, *, degree: Degree, counts: Sequence[int]) -> dict[int, PhaseLatency]:
    """Return tau_dec(degree, k) for each worker count k; never larger at more workers."""
    costs = inputs.profile.degrees[degree]

    def at(k: int) -> PhaseLatency:
        load = decode_load(inputs, degree=degree, workers=k)
        if load.utilisation >= STEADY_LIMIT:
            return PhaseLatency(math.inf, math.inf, load.utilisation)
        gaps = simulate_decode(
            inputs.sample,
            replace(costs, kv_capacity_tokens=costs.kv_capacity_tokens // batches_of(degree)),
            prefill_s=inputs.prefill_s,
            pace=load.pace,
            workers=k * batches_of(degree),
            sequences=inputs.decode.sequences_of_batch(degree),
        )
        return _tau(gaps, inputs.percentile, load.utilisation)

    return _sweep(counts, at, None)


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """A decode pool's balance: seconds per step where supply meets demand, and the scarcer of compute and KV."""

    pace: float
    utilisation: float


def decode_load(inputs: PhaseInputs, *, degree: Degree, workers: int) -> DecodeLoad:
    """Find the step time at which a batch just carries the offered tokens (throughput grows with the batch).

    Demand is rate x tokens per session / batches of all workers; supply b / T_dec(b, b x mean context), b up to what
    the KV cache holds and a batch may have.
    """
    sample, profile = inputs.sample, inputs.profile
    batches = workers * batches_of(degree)
    steps = np.maximum(sample.tokens - 1, 0)
    demand = sample.rate * sample.per_session(steps) / batches
    total = float(steps.sum())
    context = float(((sample.history + sample.increment + sample.tokens / 2) * steps).sum() / total) if total else 1.0
    capacity = profile.kv_capacity(degree) / batches_of(degree)

    def step(batch: float) -> float:
        return profile.t_dec(batch=batch, context=batch * context, degree=degree)

    largest = max(1.0, min(capacity / context, inputs.decode.sequences_of_batch(degree) or math.inf))
    supply = largest / step(largest)
    low, high = 0.0, largest
    for _ in range(40):  # bisection to a trillionth of the range
        middle = (low + high) / 2
        if middle / step(middle) < demand:
            low = middle
        else:
            high = middle
    pace = step(max(1.0, high))
    # Engines evict what idle sessions hold, so only running rounds count; for one round is rate x context x time.
    held = (
        sample.rate / batches * sample.per_session((sample.history + sample.increment + sample.tokens) * steps * pace)
    )
    return DecodeLoad(pace=pace, utilisation=max(demand / supply, held / capacity))


def at_load(inputs: PhaseInputs, rate: float) -> PhaseInputs:
    """Return the same sessions arriving at another rate: what one worker of form B sees."""
    sample = inputs.sample
    stretch = sample.rate / rate
    return replace(
        inputs,
        sample=replace(
            sample,
            rate=rate,
            window=sample.window * stretch,
            arrival=sample.arrival * stretch,
            past=sample.past * stretch,
        ),
    )


def full_load(inputs: PhaseInputs, role: Role, degree: Degree) -> float:
    """Return the sessions per second at which one worker is used all the time."""
    sample = inputs.sample
    if role == "prefill":
        return batches_of(degree) / sample.per_session(inputs.service(degree))
    low, high = 0.0, sample.rate
    while high < 1e9 and decode_load(at_load(inputs, high), degree=degree, workers=1).utilisation < 1:
        low, high = high, 2 * high
    for _ in range(20):
        middle = (low + high) / 2
        over = decode_load(at_load(inputs, middle), degree=degree, workers=1).utilisation >= 1
        low, high = (low, middle) if over else (middle, high)
    return low


def _tau(values: Floats, percentile: float, utilisation: float) -> PhaseLatency:
    if len(values) == 0:  # one-token answers have no gap to be late
        return PhaseLatency(0.0, 0.0, utilisation)
    return PhaseLatency(float(np.percentile(values, percentile)), float(values.mean()), utilisation)


def _sweep(
    counts: Sequence[int], at: Callable[[int], PhaseLatency], floor: PhaseLatency | None
) -> dict[int, PhaseLatency]:
    """Evaluate rising worker counts; a count never does worse than a smaller one, whose extra workers may idle."""
    found: dict[int, PhaseLatency] = {}
    best: PhaseLatency | None = None
    last = 0
    for k in sorted(counts):
        if best is not None and floor is not None and best.quantile_s <= SATURATED * floor.quantile_s:
            found[k] = PhaseLatency(best.quantile_s, best.mean_s, found[last].utilisation * last / k)
            last = k
            continue
        tau = at(k)
        if best is not None and tau.quantile_s > best.quantile_s:
            tau = PhaseLatency(best.quantile_s, best.mean_s, tau.utilisation)
        best = tau
        found[k] = tau
        last = k
    return found
