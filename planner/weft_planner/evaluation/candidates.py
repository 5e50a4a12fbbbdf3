"""Say what is put to the test: layouts of every kind, each with the policies and modes that could direct it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from weft_core.parallelism import degree_key, gpus_of, in_layout
from weft_core.plan import LayoutKind, PlannedGroup, PlannedPolicy
from weft_core.policies.registry import MODES, POLICIES
from weft_core.policies.routing.weft import STATISTICS
from weft_planner.programs.group_options import keeps_limits
from weft_planner.programs.inputs import PlanInputs
from weft_planner.programs.strategies import best_for_both
from weft_planner.request.engines import compatibility_of
from weft_planner.request.reading import Request
from weft_planner.simulation.layout import Layout, PolicyChoice, Worker
from weft_planner.simulation.options import Options

P95_DEVIATIONS = 1.645
"""Standard deviations above the mean that 95 % of a normal distribution stay below."""
SLICED_MODES = ("imd", "whole-or-chunked")
FEW_ALONE = 4
ADVISED_LAYOUTS = 3
"""Layouts that are also tried with modes that were not asked for: what changing the policy would bring."""
DEPLOYABLE: tuple[LayoutKind, ...] = ("disaggregated", "colocated")
"""Layouts that the operator and the router can run; which of them a service may have, it says itself."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout under one policy; ``colocated`` decode workers of a hybrid layout prefill their own sessions.

    ``runnable``: this operator, router and engine can run it; otherwise ``note`` says what is missing.
    """

    kind: LayoutKind
    groups: tuple[PlannedGroup, ...]
    policy: PolicyChoice
    colocated: int = 0
    runnable: bool = True
    note: str = ""

    @property
    def gpus(self) -> int:
        """Return how many GPUs all groups take."""
        return sum(group.gpus for group in self.groups)

    @property
    def shape(self) -> tuple[LayoutKind, tuple[PlannedGroup, ...], int]:
        """Return the layout without its policy."""
        return self.kind, self.groups, self.colocated

    @property
    def key(self) -> str:
        """Return a key that distinguishes it from all other candidates of a plan, with a stable order."""
        policy = self.policy
        groups = ",".join(f"{g.role} {g.pool} {degree_key(g.degree)}x{g.replicas:04d}" for g in self.groups)
        share = "" if policy.chunk_share is None else f" {policy.chunk_share:.3f}"
        return f"{self.kind} {self.colocated} {groups} {policy.route} {policy.mode} {policy.order}{share}"

    def __str__(self) -> str:
        """Say it as people do: P4x2 D8x1, C4x4 (co-located), S4x4 (symmetric)."""
        letter = {"colocated": "C", "symmetric": "S"}.get(self.kind, "D")
        return " ".join(
            f"{'P' if g.role == 'prefill' else letter}{in_layout(g.degree)}x{g.replicas}" for g in self.groups
        )

    def planned_policy(self, *, chunked: bool) -> PlannedPolicy:
        """Return the policy as a plan states it."""
        mode = self.policy.mode if self.policy.route == "weft" else ""
        share = self.policy.chunk_share if chunked else None
        return PlannedPolicy(self.policy.route, mode, self.policy.order, self.policy.binding, chunked, share)


def with_policies(inputs: PlanInputs, layouts: Sequence[tuple[PlannedGroup, ...]]) -> list[Candidate]:
    """Return disaggregated layouts, best first, each under what was asked for, the first ones under other modes too."""
    found = []
    for rank, groups in enumerate(layouts):
        lacking = cannot_run(inputs, "disaggregated", groups)
        found += [
            Candidate("disaggregated", groups, policy, runnable=not lacking, note=lacking)
            for policy in runnable_policies(inputs.request)
        ]
        if rank < ADVISED_LAYOUTS:
            for policy in advised_policies(inputs.request):
                note = "; ".join(part for part in (lacking, _not_set(policy)) if part)
                found.append(Candidate("disaggregated", groups, policy, runnable=False, note=note))
    return found


def other_kinds(inputs: PlanInputs, disaggregated: Sequence[tuple[PlannedGroup, ...]]) -> list[Candidate]:
    """Return co-located, symmetric and hybrid layouts of the pools that may do both, on all GPUs and on fewer.

    Where decode workers cannot prefill, none is advised that was not asked for.
    """
    engine = inputs.request.engine
    local = compatibility_of(engine).local
    alone: tuple[LayoutKind, ...] = ("colocated", "symmetric")
    kinds = [kind for kind in alone if local or kind in engine.layouts]
    found = [one for kind in kinds for groups in _one_role(inputs) for one in _other(inputs, kind, groups)]
    for groups in disaggregated[:2] if local or "hybrid" in engine.layouts else ():
        decoding = sum(group.replicas for group in groups if group.role == "decode")
        if decoding > 1 and len({group.degree for group in groups}) == 1:
            found += _other(inputs, "hybrid", groups, colocated=decoding // 2)
    return found


def cannot_run(inputs: PlanInputs, kind: LayoutKind, groups: Iterable[PlannedGroup]) -> str:
    """Say why the operator cannot run a layout, empty when it can."""
    groups = tuple(groups)
    engine = inputs.request.engine
    if kind not in engine.layouts:
        return _not_asked(kind)
    roles = [group.role for group in groups]
    if len(roles) != len(set(roles)) and not engine.mixed_degrees:
        return "set planning.mixedDegrees to let workers of one role differ in degree and pool"
    return ""


def _not_asked(kind: LayoutKind) -> str:
    if kind in DEPLOYABLE:
        return f"add {kind} to planning.layouts"
    return f"the operator does not deploy {kind} layouts yet"


def runnable_policies(request: Request) -> list[PolicyChoice]:
    """Return the policies that the router can run for this service: the one asked for, in each mode it has."""
    routing = request.routing
    if routing.policy != "weft":
        return [_policy(request, routing.policy, "")]
    modes = (routing.mode,) if routing.mode else routing.modes or chosen_modes(request)
    chosen = [_policy(request, "weft", mode) for mode in MODES if mode in modes]
    return [one for choice in chosen for one in with_careful(request, choice)]


def chosen_modes(request: Request) -> tuple[str, ...]:
    """Return the modes of policy weft that a plan chooses from: local prefills as they would run, or none.

    Whole local prefills lengthen few gaps by much, which a mean over a session allows and a tail does not.
    """
    if not compatibility_of(request.engine).local:
        return ("remote-jsq",)
    if not (request.routing.slices and compatibility_of(request.engine).slices):
        return ("ia", "remote-jsq")
    return ("whole-or-chunked" if request.slo.itl_statistic == "mean" else "imd", "remote-jsq")


def with_careful(request: Request, choice: PolicyChoice) -> list[PolicyChoice]:
    """Return a policy and, where it runs slices and predictions may be wrong, the same with shorter slices."""
    sliced = choice.route == "weft" and choice.mode in SLICED_MODES
    share = careful_share(request.routing.prediction_error)
    return [choice, replace(choice, chunk_share=share)] if sliced and share < Options().chunk_fraction else [choice]


def careful_share(error: float) -> float:
    """Return the share of the ITL SLO for steps with a slice with which 95 % of them keep it, to a percent.

    ``error`` is the lognormal sigma of real slices against predictions.
    """
    return round(math.exp(-P95_DEVIATIONS * error), 2)


def advised_policies(request: Request) -> list[PolicyChoice]:
    """Return what would be worth a change: the modes of policy weft that were not asked for and could run."""
    if request.routing.mode or not compatibility_of(request.engine).local:
        return []
    mine = runnable_policies(request)
    return [choice for mode in MODES if (choice := _policy(request, "weft", mode)) not in mine]


def layout_of(inputs: PlanInputs, candidate: Candidate) -> Layout:
    """Return a candidate's layout for the simulator.

    Workers are taken to lie on different nodes, because the scheduler spreads them, unless a pool is a single node.
    """
    at: dict[str, int] = {}
    for number, (pool, nodes) in enumerate(inputs.limits.nodes.items()):
        at[pool] = number if len(nodes) == 1 else -1

    def workers(role: str) -> list[Worker]:
        return [
            Worker(group.degree, group.pool, at[group.pool])
            for group in candidate.groups
            if group.role == role
            for _ in range(group.replicas)
        ]

    decode = workers("decode")
    mixed = [replace(worker, colocated=i < candidate.colocated) for i, worker in enumerate(decode)]
    return Layout(prefill=tuple(workers("prefill")), decode=tuple(mixed), kind=candidate.kind)


def _other(
    inputs: PlanInputs, kind: LayoutKind, groups: tuple[PlannedGroup, ...], *, colocated: int = 0
) -> list[Candidate]:
    request = inputs.request
    lacking = cannot_run(inputs, kind, groups)
    policy = _policy(request, "colocated" if kind == "colocated" else "weft", "imd" if request.engine.chunked else "ia")
    return [
        Candidate(kind, groups, choice, colocated=colocated, runnable=not lacking, note=lacking)
        for choice in with_careful(request, policy)
    ]


def _policy(request: Request, route: str, mode: str) -> PolicyChoice:
    routing = request.routing
    params = dict(routing.params) if route == routing.policy else {}
    if route in ("weft", "colocated"):
        params.setdefault("itl_statistic", float(STATISTICS.index(request.slo.itl_statistic)))
    own = routing.order if route == routing.policy else ""
    return PolicyChoice(
        route=route,
        mode=mode,
        binding=routing.binding or POLICIES[route].binding,
        order=own or POLICIES[route].order,
        params=params,
        window=routing.window,
        cap=routing.ageing_cap,
    )


def _not_set(policy: PolicyChoice) -> str:
    return f"set the routing policy to weft, mode {policy.mode}"


def _one_role(inputs: PlanInputs) -> Iterator[tuple[PlannedGroup, ...]]:
    """Yield single groups that do both phases: for each pool and degree as many workers as fit, and half of them.

    Of more than ``FEW_ALONE`` degrees those that should carry most.
    """
    limits = inputs.limits
    least, bound = limits.workers.get("decode", (1, None))
    prefilling = {pool.name for pool in inputs.pools("prefill")}
    for pool in inputs.pools("decode"):
        if pool.name not in prefilling:
            continue
        degrees = inputs.degrees[pool.name]
        if len(degrees) > FEW_ALONE:
            degrees = best_for_both(inputs, pool, FEW_ALONE - 1)
        for degree in degrees:
            most = limits.gpus_of(pool.name) // gpus_of(degree)
            most = most if bound is None else min(most, bound)
            while most and not limits.packs(pool.name, [degree] * most):
                most -= 1
            for count in sorted({most, max(least, (most + 1) // 2)}, reverse=True):
                if not least <= count <= most:
                    continue
                group = PlannedGroup("decode", degree, count, pool.name)
                alone = replace(limits, workers={}, ratio=(None, None), kv_tokens=0.0)
                if keeps_limits((group,), alone, kv_tokens=0.0):
                    yield (group,)
