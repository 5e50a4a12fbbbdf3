"""Bound what a layout could carry at all, and how fast: hopeless runs, whose queues make them slow, are left out."""

from collections.abc import Sequence

from weft_core.parallelism import Degree, batches_of
from weft_core.plan import PlannedGroup, Role
from weft_planner.phases.latency import full_load
from weft_planner.programs.inputs import PlanInputs
from weft_planner.request.costs import known_model


class LoadBound:
    """Sessions per second that workers carry, by role, pool and degree; computed once each."""

    def __init__(self, inputs: PlanInputs) -> None:
        self._inputs = inputs
        model = known_model(inputs.request)
        self._shared_work = 0.0 if model is None else model.expert_share
        self._full: dict[tuple[int, Role, Degree], float] = {}

    def most(self, groups: Sequence[PlannedGroup], *, slices: bool = False) -> float:
        """Return the sessions per second at which even an ideal sharing of the work uses all workers all the time.

        p sessions/s could be prefilled by the prefill workers; the others could decode d, or prefill q, if they did
        nothing else. When the share y of prefills runs on them, R (1 - y) <= p and R / d + R y / q <= 1. In ``slices``
        prefills ride along with decode steps, which have compute to spare and read the weights anyway: at best for
        nothing, so that R <= d and R y <= q.
        """
        prefilling = [group for group in groups if group.role == "prefill"]
        others = [group for group in groups if group.role != "prefill"]
        p = self._sum(prefilling, "prefill")
        d = self._sum(others, "decode")
        q = self._sum(others, "prefill")
        if d <= p or q <= 0:
            return min(p, d)
        return min(d, p + q) if slices else (1 + p / q) / (1 / d + 1 / q)

    def least_itl(self, groups: Sequence[PlannedGroup]) -> float:
        """Return the seconds that a token takes at least: a step of one short sequence, by itself on its worker.

        0 where an answer may have one token only, and no gap.
        """
        return min(self._least_step(group) for group in groups if group.role != "prefill")

    def _least_step(self, group: PlannedGroup) -> float:
        phases = self._inputs.phases[group.pool]
        if phases.sample.tokens.min() < 2:
            return 0.0
        idle = 1 - 1 / batches_of(group.degree)
        return phases.profile.t_dec(batch=1, context=1, degree=group.degree) * (1 - self._shared_work * idle)

    def _sum(self, groups: Sequence[PlannedGroup], phase: Role) -> float:
        return sum(group.replicas * self._one(group, phase) for group in groups)

    def _one(self, group: PlannedGroup, phase: Role) -> float:
        phases = self._inputs.phases[group.pool]
        key = (id(phases), phase, group.degree)
        if key not in self._full:
            self._full[key] = full_load(phases, phase, group.degree)
        return self._full[key]
