"""Estimate from costs alone what each layout could carry within the SLO: which split of the GPUs to put to the test.

The programs rank layouts by latency at the workload's own rate. Goodput is decided where queues grow, and there another
split of the GPUs may be better. No simulation here: a queue's tail is that of M/G/k by the usual approximations
(Sakasegawa for the chance to wait, Kingman's factor for its length), a decode worker is full when a step takes the ITL
SLO or its KV is used up, and work is shared as well as it can be.
"""

import math
from collections.abc import Sequence

import numpy as np

from weft_core.parallelism import Degree, batches_of
from weft_core.plan import PlannedGroup
from weft_planner.phases.latency import PhaseInputs
from weft_planner.programs.group_options import GroupOption
from weft_planner.programs.inputs import PlanInputs
from weft_planner.workload.distributions import Floats

STEPS = 30
"""Halvings of a utilisation or a batch: a billionth of the range."""
LEAST_LATE = 1e-3
LEAST_SLACK = 0.05
"""Share of the TTFT SLO that is left to wait at least: a few late rounds do not make a layout worthless."""


class SloCapacity:
    """Sessions per second that groups of workers can prefill or decode within the SLO; costs are looked at once.

    So many sessions may miss the SLO that all but ``late`` of the rounds must keep it.
    """

    def __init__(self, inputs: PlanInputs) -> None:
        self._inputs = inputs
        self._slo = inputs.request.slo
        self._rounds = inputs.sample.rows / inputs.sample.sessions
        self._late = max(LEAST_LATE, 1 - self._slo.attainment) / self._rounds
        self._services: dict[tuple[int, Degree], tuple[float, float, float]] = {}
        self._decode: dict[tuple[int, Degree], float] = {}

    def carried(self, prefill: Sequence[GroupOption], decode: Sequence[GroupOption], *, shared: bool) -> Floats:
        """Return a table of what each pair carries; ``shared``: decode workers may prefill too.

        p sessions/s can be prefilled by the prefill workers, d decoded and q prefilled by the others: min(p, d), or
        what the load bound says of shared work, half way between prefills that take turns with decoding and that ride
        along.
        """
        p = np.array([self.prefilled(c) for c in prefill])[:, None]
        d = np.array([self.decoded(c) for c in decode])[None, :]
        least: Floats = np.minimum(p, d)
        if not shared:
            return least
        q = np.array([self.prefilled(c) for c in decode])[None, :]
        with np.errstate(divide="ignore", invalid="ignore"):
            in_turn = np.where((d > 0) & (q > 0), (1 + p / q) / (1 / d + 1 / q), least)
        found: Floats = np.where(d > p, (in_turn + np.minimum(d, p + q)) / 2, least)
        return found

    def prefilled(self, group: GroupOption | PlannedGroup) -> float:
        """Return the sessions per second of which enough have every TTFT within the SLO, when nothing else is slow."""
        mean, slow, bursts = self._service(group.pool, group.degree)
        left = max(self._slo.ttft - slow, LEAST_SLACK * self._slo.ttft)
        low, high = 0.0, 1.0
        servers = group.replicas * batches_of(group.degree)
        for _ in range(STEPS):
            middle = (low + high) / 2
            waiting = middle ** (math.sqrt(2 * (servers + 1)) - 1)
            late = waiting * math.exp(-(1 - middle) * servers / mean * bursts * left)
            low, high = (middle, high) if late <= self._late else (low, middle)
        return low * servers / (mean * self._rounds)

    def decoded(self, group: GroupOption | PlannedGroup) -> float:
        """Return the sessions per second at which a step takes the ITL SLO, or at which the KV cache is full."""
        phases = self._phases(group.pool)
        key = id(phases), group.degree
        if key not in self._decode:
            self._decode[key] = self._one_decodes(phases, group.degree)
        return group.replicas * self._decode[key]

    def _one_decodes(self, phases: PhaseInputs, degree: Degree) -> float:
        sample, profile = self._inputs.sample, phases.profile
        steps = np.maximum(sample.tokens - 1, 0)
        of_session = sample.per_session(steps)
        if of_session <= 0:
            return math.inf
        context = float(((sample.history + sample.increment + sample.tokens / 2) * steps).sum() / steps.sum())
        batches = batches_of(degree)
        held = profile.kv_capacity(degree) / batches / context
        low, high = 0.0, max(1.0, min(held, phases.decode.sequences_of_batch(degree) or math.inf))

        def step(batch: float) -> float:
            return profile.t_dec(batch=batch, context=batch * context, degree=degree)

        if step(high) > self._slo.itl:
            for _ in range(STEPS):
                middle = (low + high) / 2
                low, high = (middle, high) if step(max(1.0, middle)) <= self._slo.itl else (low, middle)
            high = low
        return batches * high / step(max(1.0, high)) / of_session

    def _service(self, pool: str, degree: Degree) -> tuple[float, float, float]:
        """Return a prefill's mean, what only as many exceed as may be late, and the factor of Kingman's formula."""
        phases = self._phases(pool)
        key = id(phases), degree
        if key not in self._services:
            service = phases.service(degree)
            mean = float(service.mean())
            bursts = 2 / (1 + float(service.var()) / mean**2)
            self._services[key] = mean, float(np.quantile(service, 1 - self._late)), bursts
        return self._services[key]

    def _phases(self, pool: str) -> PhaseInputs:
        return self._inputs.phases[pool]
