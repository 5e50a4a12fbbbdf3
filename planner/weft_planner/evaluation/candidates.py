"""Say what is put to the test: layouts of every kind, each with the policies and modes that could direct it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from weft_core.layouts import (
    LayoutKind,
    PlannedGroup,
    PlannedPolicy,
    WorkerRole,
    duties_of,
    in_order,
    kind_of,
    layout_name,
)
from weft_core.parallelism import degree_key, gpus_of
from weft_core.policies.registry import MODES, POLICIES
from weft_core.policies.routing.weft import STATISTICS
from weft_planner.programs.group_options import keeps_limits
from weft_planner.programs.inputs import PlanInputs
from weft_planner.programs.limits import limits_of_kind
from weft_planner.programs.strategies import best_for_both
from weft_planner.request.capacity import Pool
from weft_planner.request.engines import compatibility_of, layout_fault, layouts_of
from weft_planner.request.reading import Request
from weft_planner.simulation.layout import Layout, PolicyChoice, Worker
from weft_planner.simulation.options import Options

P95_DEVIATIONS = 1.645
"""Standard deviations above the mean that 95 % of a normal distribution stay below."""
SLICED_MODES = ("imd", "whole-or-chunked")
MOSTLY_REMOTE = ("remote-jsq", "ampd", "always-remote")
"""Rules that prefill where the KV lies only as a last resort."""
FEW_ALONE = 4
HYBRIDS = 2
"""Disaggregated layouts of which half of the decode workers are tried with both roles."""
ADVISED_LAYOUTS = 3
"""Layouts that are also tried with modes that were not asked for: what changing the policy would bring."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout under one policy.

    ``runnable``: the engine can run it and the service allows it; otherwise ``note`` says what is missing.
    """

    kind: LayoutKind
    groups: tuple[PlannedGroup, ...]
    policy: PolicyChoice
    runnable: bool = True
    note: str = ""

    @property
    def gpus(self) -> int:
        """Return how many GPUs all groups take."""
        return sum(group.gpus for group in self.groups)

    @property
    def shape(self) -> tuple[LayoutKind, tuple[PlannedGroup, ...]]:
        """Return the layout without its policy."""
        return self.kind, self.groups

    @property
    def key(self) -> str:
        """Return a key that distinguishes it from all other candidates of a plan, with a stable order."""
        policy = self.policy
        groups = ",".join(f"{g.role} {g.pool} {degree_key(g.degree)}x{g.replicas:04d}" for g in self.groups)
        share = "" if policy.chunk_share is None else f" {policy.chunk_share:.3f}"
        return f"{self.kind} {groups} {policy.route} {policy.mode} {policy.order}{share}"

    def __str__(self) -> str:
        """Return the layout's name: P4x2 D8x1."""
        return layout_name(self.groups, self.kind)

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

    Beside them what runs now, where it is of one of these kinds. Where decode workers cannot prefill there is none.
    """
    request = inputs.request
    if not compatibility_of(request.engine).local:
        return []
    found = [*_one_role(inputs, "decode")]
    if request.routing.policy != "colocated":  # which prefills for nobody else
        found += [*_one_role(inputs, "both"), *islice(_hybrids(inputs, disaggregated), HYBRIDS)]
    running = current_groups(inputs)
    if running and kind_of(running) != "disaggregated" and may_stay(inputs, running):
        found.append(running)
    return [one for groups in dict.fromkeys(found) for one in _other(inputs, kind_of(groups), groups)]


def current_groups(inputs: PlanInputs) -> tuple[PlannedGroup, ...]:
    """Return the groups that run now, in the order of plans."""
    return in_order(PlannedGroup(g.role, g.degree, g.replicas, g.pool) for g in inputs.request.current)


def may_stay(inputs: PlanInputs, groups: tuple[PlannedGroup, ...]) -> bool:
    """Return whether what runs now keeps the request's limits."""
    if any(group.degree not in inputs.degrees.get(group.pool, ()) for group in groups):
        return False
    return keeps_limits(groups, limits_of_kind(inputs.limits, kind_of(groups)), kv_tokens=0.0)


def cannot_run(inputs: PlanInputs, kind: LayoutKind, groups: Iterable[PlannedGroup]) -> str:
    """Say why a layout cannot be the plan, empty when it can."""
    engine = inputs.request.engine
    fault = layout_fault(engine, kind)
    if fault:
        return fault
    if kind not in layouts_of(engine):
        return f"add {kind} to planning.layouts"
    roles = [group.role for group in groups]
    if len(roles) != len(set(roles)) and not engine.mixed_degrees:
        return "set planning.mixedDegrees to let workers of one role differ in degree and pool"
    return ""


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

    def workers(group: PlannedGroup) -> list[Worker]:
        return [Worker(group.degree, group.pool, at[group.pool], both=group.role == "both")] * group.replicas

    prefill = [one for group in candidate.groups if group.role == "prefill" for one in workers(group)]
    decode = [one for group in candidate.groups if group.role != "prefill" for one in workers(group)]
    return Layout(prefill=tuple(prefill), decode=tuple(decode), kind=candidate.kind)


def _other(inputs: PlanInputs, kind: LayoutKind, groups: tuple[PlannedGroup, ...]) -> list[Candidate]:
    lacking = cannot_run(inputs, kind, groups)
    return [
        Candidate(kind, groups, policy, runnable=not lacking, note=lacking)
        for policy in _policies_of(inputs.request, kind)
    ]


def _policies_of(request: Request, kind: LayoutKind) -> list[PolicyChoice]:
    """Return the rules of a layout that is not disaggregated.

    Where workers have both roles those that the router can run, without those that prefill locally as a last resort:
    they are tried in disaggregated layouts.
    """
    if kind == "colocated":
        return [_policy(request, "colocated", "")]
    found = runnable_policies(request)
    return [one for one in found if not {one.route, one.mode} & {*MOSTLY_REMOTE}] or found


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


def _one_role(inputs: PlanInputs, role: WorkerRole) -> Iterator[tuple[PlannedGroup, ...]]:
    """Yield single groups that do both phases: for each pool and degree as many workers as fit, and half of them.

    For objective ``cost`` a quarter of them, too. Of more than ``FEW_ALONE`` degrees those that should carry most. A
    worker with both roles needs a second one.
    """
    limits = limits_of_kind(inputs.limits, "colocated" if role == "decode" else "symmetric")
    bounds = [limits.workers[duty] for duty in duties_of(role)]
    least = max(2 if role == "both" else 1, *(low for low, _ in bounds))
    bound = min((high for _, high in bounds if high is not None), default=None)
    parts = (1, 2, 4) if inputs.request.objective == "cost" else (1, 2)
    for pool in _pools_of_both(inputs):
        degrees = inputs.degrees[pool.name]
        if len(degrees) > FEW_ALONE:
            degrees = best_for_both(inputs, pool, FEW_ALONE - 1)
        for degree in degrees:
            most = min(limits.gpus_of(pool.name), limits.affordable_gpus(pool.name)) // gpus_of(degree)
            most = most if bound is None else min(most, bound)
            while most and not limits.packs(pool.name, [degree] * most):
                most -= 1
            for count in sorted({max(least, -(-most // part)) for part in parts}, reverse=True):
                group = PlannedGroup(role, degree, count, pool.name)
                if least <= count <= most and keeps_limits((group,), limits, kv_tokens=0.0):
                    yield (group,)


def _hybrids(
    inputs: PlanInputs, disaggregated: Sequence[tuple[PlannedGroup, ...]]
) -> Iterator[tuple[PlannedGroup, ...]]:
    """Yield layouts of like workers with both roles for half of the decode workers."""
    pools = {pool.name for pool in _pools_of_both(inputs)}
    limits = limits_of_kind(inputs.limits, "hybrid")
    for groups in disaggregated:
        if [group.role for group in groups] != ["prefill", "decode"]:
            continue
        prefill, decode = groups
        if prefill.degree != decode.degree:
            continue
        both = decode.replicas // 2
        rest = replace(decode, replicas=decode.replicas - both)
        hybrid = (prefill, rest, replace(decode, role="both", replicas=both))
        if both and decode.pool in pools and keeps_limits(hybrid, limits, kv_tokens=0.0):
            yield hybrid


def _pools_of_both(inputs: PlanInputs) -> list[Pool]:
    """Return the pools whose workers may have both roles."""
    prefilling = {pool.name for pool in inputs.pools("prefill")}
    return [pool for pool in inputs.pools("decode") if pool.name in prefilling]
