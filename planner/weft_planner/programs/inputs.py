"""Make a request ready: cost profiles and usable degrees by pool, sample sessions, limits, phase simulations."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from weft_core.cost import CostProfile
from weft_core.parallelism import Degree
from weft_core.plan import Role
from weft_planner.phases.latency import PhaseInputs, phase_inputs
from weft_planner.programs.group_options import PlanLimits
from weft_planner.programs.limits import limits_of
from weft_planner.programs.no_degree import explain_no_degree
from weft_planner.request.capacity import Pool
from weft_planner.request.costs import profiles_of
from weft_planner.request.engines import step_limits
from weft_planner.request.infeasible import degrees_of
from weft_planner.request.reading import Request
from weft_planner.workload.sessions import Sample, Size, draw

PHASE_ROUNDS = 2000
"""Rounds that a phase is simulated over: 85 lie beyond the P95, which is enough to prune by."""


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """A request made ready; everything by pool's name. ``degrees`` are those that can run the model's context."""

    request: Request
    profiles: Mapping[str, CostProfile]
    degrees: Mapping[str, list[Degree]]
    limits: PlanLimits
    sample: Sample
    phases: Mapping[str, PhaseInputs]

    @property
    def round_seconds(self) -> float:
        """Return a guess of one round's time, gap excluded: half as long again as at the best of times."""
        phases = next(iter(self.phases.values()))
        return 1.5 * float(phases.prefill_s.mean() + np.maximum(self.sample.tokens - 1, 0).mean() * phases.pace)

    def pools(self, role: Role) -> list[Pool]:
        """Return the pools that may hold a role and can run the model."""
        return [pool for pool in self.request.capacity.pools if role in pool.roles and self.degrees[pool.name]]

    def asking(self, request: Request) -> "PlanInputs":
        """Return the same inputs for a request that differs in its SLO or objective only."""
        return replace(self, request=request)


def prepare_inputs(request: Request) -> PlanInputs:
    """Get costs, usable degrees, limits and sample sessions for a request.

    Raises:
        Infeasible: the profiles cannot be used, or the model cannot run at any degree of the pools.
    """
    profiles = profiles_of(request)
    pools = request.capacity.pools
    degrees = {
        pool.name: degrees_of(pool, profiles[pool.name], request.model.max_model_len) if pool.name in profiles else []
        for pool in pools
    }
    if not any(degrees.values()):
        raise explain_no_degree(request, profiles)
    sample = draw(
        request.workload,
        max_model_len=request.model.max_model_len,
        round_seconds=request.slo.ttft + request.workload.mean_decode * request.slo.itl,
        seed=request.seed,
        size=Size(rounds=PHASE_ROUNDS),
    )
    phases = phase_inputs(
        sample,
        {pool.name: (profiles[pool.name], degrees[pool.name]) for pool in pools if degrees[pool.name]},
        percentile=request.slo.percentile,
        bidirectional=request.engine.bidirectional,
        prefill=step_limits(request.engine.prefill),
        decode=step_limits(request.engine.decode),
    )
    return PlanInputs(
        request=request,
        profiles=profiles,
        degrees=degrees,
        limits=limits_of(request, degrees, kv_tokens=_least_held(sample, next(iter(phases.values())))),
        sample=sample,
        phases=phases,
    )


def _least_held(sample: Sample, phases: PhaseInputs) -> float:
    """Return the tokens that running rounds hold at once at the best times of both phases: less can never do.

    By Little's law: rate x mean over sessions of the sum over rounds of context x time.
    """
    context = sample.history + sample.increment + sample.tokens
    seconds = phases.prefill_s + np.maximum(sample.tokens - 1, 0) * phases.pace
    return sample.rate * sample.per_session(context * seconds)
