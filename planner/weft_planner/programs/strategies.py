"""Keep the parallelism strategies that are worth simulating: where many are allowed, most are beaten at everything."""

from collections.abc import Mapping
from dataclasses import replace

from weft_core.parallelism import Degree, gpus_of
from weft_core.plan import PlannedGroup
from weft_planner.phases.latency import prefill_seconds
from weft_planner.programs.inputs import PlanInputs
from weft_planner.programs.slo_capacity import SloCapacity
from weft_planner.request.capacity import Pool

FEW = 8
"""So many strategies of a pool are all simulated."""
OF_A_ROLE = 3
OF_BOTH = 2


def with_best_strategies(inputs: PlanInputs) -> PlanInputs:
    """Return inputs with the strategies of each pool that carry most within the SLO, by costs alone.

    Of more than ``FEW``, those are kept that prefill, decode, or do both, for the most sessions per second and GPU; the
    fastest of each phase; the smallest; and what runs now.
    """
    degrees = {
        pool.name: _best(inputs, pool) if len(inputs.degrees[pool.name]) > FEW else inputs.degrees[pool.name]
        for pool in inputs.request.capacity.pools
    }
    return replace(inputs, degrees=degrees)


def best_for_both(inputs: PlanInputs, pool: Pool, count: int) -> list[Degree]:
    """Return the strategies whose workers carry most when each prefills and decodes, in order of the pool's."""
    figures = _Figures(inputs, pool)
    best = figures.most(figures.both, figures.step_s, count)
    return [degree for degree in inputs.degrees[pool.name] if degree in best]


def _best(inputs: PlanInputs, pool: Pool) -> list[Degree]:
    degrees, figures = inputs.degrees[pool.name], _Figures(inputs, pool)
    running = {group.degree for group in inputs.request.current if group.pool == pool.name}
    kept = {
        *figures.most(figures.prefilled, figures.prefill_s, OF_A_ROLE),
        *figures.most(figures.decoded, figures.step_s, OF_A_ROLE),
        *figures.most(figures.both, figures.step_s, OF_BOTH),
        min(degrees, key=lambda n: figures.prefill_s[n]),
        min(degrees, key=lambda n: figures.step_s[n]),
        min(degrees, key=gpus_of),
        *(running & set(degrees)),
    }
    return [degree for degree in degrees if degree in kept]


class _Figures:
    """What a pool's strategies promise: seconds of a mean prefill and of a lone step, sessions per second and GPU."""

    def __init__(self, inputs: PlanInputs, pool: Pool) -> None:
        self._degrees = degrees = inputs.degrees[pool.name]
        phases, promise = inputs.phases[pool.name], SloCapacity(inputs)
        half = inputs.limits.gpus_of(pool.name) // 2
        history, increment = phases.computed
        context = float(inputs.sample.history.mean() + inputs.sample.increment.mean())
        self.prefill_s = {
            n: float(prefill_seconds(phases.profile, history=history, increment=increment, degree=n).mean())
            for n in degrees
        }
        self.step_s = {n: phases.profile.t_dec(batch=1, context=context, degree=n) for n in degrees}
        groups = {n: PlannedGroup("decode", n, max(1, half // gpus_of(n)), pool.name) for n in degrees}
        self.prefilled = {n: promise.prefilled(group) / group.gpus for n, group in groups.items()}
        self.decoded = {n: promise.decoded(group) / group.gpus for n, group in groups.items()}
        self.both = {n: _in_turn(self.prefilled[n], self.decoded[n]) for n in degrees}

    def most(self, carried: Mapping[Degree, float], seconds: Mapping[Degree, float], count: int) -> list[Degree]:
        """Return those that carry most; of those that carry nothing, the fastest."""
        return sorted(self._degrees, key=lambda n: (-carried[n], seconds[n]))[:count]


def _in_turn(prefilled: float, decoded: float) -> float:
    """Return the sessions per second of workers that do both, one after the other."""
    return 1 / (1 / prefilled + 1 / decoded) if prefilled > 0 and decoded > 0 else 0.0
