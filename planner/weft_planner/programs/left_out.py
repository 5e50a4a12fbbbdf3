"""Why a parallelism strategy that a pool names is not in the plan, and the nearest one that would work."""

from weft_core.parallelism import Degree, gpus_of
from weft_core.spans import fits_nodes
from weft_planner.programs.inputs import PlanInputs
from weft_planner.programs.nearest import nearest_strategies, partners
from weft_planner.request.capacity import Pool
from weft_planner.request.engines import MAX_PAIRS, layouts_of, pairing_rule
from weft_planner.request.hardware import dimensions_of


def left_out_notes(inputs: PlanInputs) -> list[str]:
    """Return a note for each entry of ``pools[].parallelism`` that no layout, or only a co-located one, can have."""
    found = []
    for index, pool in enumerate(inputs.request.capacity.pools):
        for degree in dict.fromkeys(one.degree for one in pool.parallelism):
            where, reason = _left_out(inputs, pool, degree)
            if reason:
                near = next(nearest_strategies(inputs.request, inputs.profiles, inputs.degrees, pool, degree), None)
                would = "" if near is None else f"; {near} would work"
                found.append(f"spec.capacity.pools[{index}].parallelism: {degree} is left out{where}: {reason}{would}")
    return found


def _left_out(inputs: PlanInputs, pool: Pool, degree: Degree) -> tuple[str, str]:
    """Return of what a strategy is left out, empty for all layouts, and why; no reason where it is not left out."""
    if degree not in inputs.degrees[pool.name]:
        return "", _reason(inputs, pool, degree)
    most = inputs.limits.gpus_of(pool.name)
    if inputs.limits.room_for(pool.name, degree) == 0 or gpus_of(degree) > most:
        largest = max(inputs.limits.nodes[pool.name], default=0)
        nodes = max(inputs.limits.racks.get(pool.name, ()), default=0)
        racks = f", and at most {nodes} nodes of a rack are wholly free" if pool.name in inputs.limits.racks else ""
        return "", (
            f"a worker takes {gpus_of(degree)} GPUs, and the pool has {most}, of which at most {largest} are free on "
            f"one node{racks}"
        )
    paired, every = partners(inputs.request, inputs.degrees, pool, degree)
    if paired:
        return "", ""
    named = ", ".join(map(str, every[:MAX_PAIRS])) + (", …" if len(every) > MAX_PAIRS else "")
    alone = len(pool.roles) > 1 and "colocated" in layouts_of(inputs.request.engine)
    return (
        " of all but co-located layouts" if alone else "",
        f"it exchanges KV with none of {named} ({pairing_rule(inputs.request.engine)})",
    )


def _reason(inputs: PlanInputs, pool: Pool, degree: Degree) -> str:
    """Say why the pool cannot run a strategy."""
    request = inputs.request
    if not fits_nodes(degree, pool.gpus_per_node):
        return f"{gpus_of(degree)} GPUs are more than the {pool.gpus_per_node} of a node and no multiple of them"
    if not pool.takes(degree):
        return f"{gpus_of(degree)} GPUs are more than the {pool.gpus_per_rack} of a rack, in which a worker lies"
    profile = inputs.profiles.get(pool.name)
    known = profile is not None and degree in profile.degrees
    draft = request.engine.speculative is not None
    if (request.profile is not None or request.profiles) and not known:
        return "the cost profile has no row of it" + (", or leaves no room for KV beside the draft" if draft else "")
    if profile is not None and known:
        return (
            f"it holds {profile.longest_context(degree)} tokens of one sequence's KV, fewer than "
            f"spec.model.maxModelLen ({request.model.max_model_len})"
        )
    weights = "the weights and the draft's do" if draft else "the weights do"
    return dimensions_of(request.model).why_not(degree) or (f"{weights} not fit {gpus_of(degree)} x {pool.gpu_type}")
