"""Why a parallelism strategy that a pool names is not in the plan, and the nearest one that would work."""

import contextlib
from collections.abc import Iterator
from itertools import product

from weft_core.analytic import ModelDoesNotFit, derive_profile
from weft_core.dimensions import ModelDimensions
from weft_core.gpus import gpu_named
from weft_core.parallelism import Degree, degree_of, gpus_of, parallelism_of
from weft_core.spans import fits_nodes
from weft_planner.programs.inputs import PlanInputs
from weft_planner.request.capacity import Pool
from weft_planner.request.costs import with_drafts
from weft_planner.request.hardware import dimensions_of
from weft_planner.request.reading import Request

POWERS = (1, 2, 4, 8, 16, 32, 64)


def left_out_notes(inputs: PlanInputs) -> list[str]:
    """Return a note for each entry of ``pools[].parallelism`` that no layout can have."""
    return [
        f"spec.capacity.pools[{index}].parallelism: {degree} is left out: {_reason(inputs, pool, degree)}"
        for index, pool in enumerate(inputs.request.capacity.pools)
        for degree in dict.fromkeys(one.degree for one in pool.parallelism)
        if degree not in inputs.degrees[pool.name]
    ]


def _reason(inputs: PlanInputs, pool: Pool, degree: Degree) -> str:
    request = inputs.request
    if not fits_nodes(degree, pool.gpus_per_node):
        return f"{gpus_of(degree)} GPUs are more than the {pool.gpus_per_node} of a node and no multiple of them"
    profile = inputs.profiles.get(pool.name)
    known = profile is not None and degree in profile.degrees
    draft = request.engine.speculative is not None
    if (request.profile is not None or request.profiles) and not known:
        return "the cost profile has no row of it" + (", or leaves no room for KV beside the draft" if draft else "")
    model = dimensions_of(request.model)
    what = model.why_not(degree)
    if not what:
        if profile is not None and known:
            what = (
                f"it holds {profile.longest_context(degree)} tokens of one sequence's KV, fewer than "
                f"spec.model.maxModelLen ({request.model.max_model_len})"
            )
        else:
            weights = "the weights and the draft's do" if draft else "the weights do"
            what = f"{weights} not fit {gpus_of(degree)} x {pool.gpu_type}"
    near = next(_others(request, model, pool, degree), None)
    return what if near is None else f"{what}; {near} would work"


def _others(request: Request, model: ModelDimensions, pool: Pool, wanted: Degree) -> Iterator[Degree]:
    """Yield parallelism strategies that work, the one with most in common first."""
    gpu = gpu_named(pool.gpu_type)
    if gpu is None:
        return
    parts = parallelism_of(wanted)
    found = [
        degree_of(tp=tp, pp=pp, dp=dp, ep=ep)
        for tp, pp, dp, ep in product(POWERS[:5], POWERS[:3], POWERS, (False, True))
        if parts.gpus / 2 <= tp * pp * dp <= 2 * parts.gpus and tp * pp <= pool.gpus_per_node
    ]

    def distance(degree: Degree) -> tuple[int, int, str]:
        other = parallelism_of(degree)
        same = (other.tp == parts.tp) + (other.pp == parts.pp) + (other.dp == parts.dp) + (other.ep == parts.ep)
        return -same, abs(other.gpus - parts.gpus), str(degree)

    for degree in sorted(set(found), key=distance):
        if fits_nodes(degree, pool.gpus_per_node) and model.splits(degree):
            with contextlib.suppress(ModelDoesNotFit):
                profile = derive_profile(model, gpu, degrees=[degree], node_gpus=pool.gpus_per_node)
                context = with_drafts(request, profile, model).longest_context(degree)
                if context >= request.model.max_model_len:
                    yield degree
