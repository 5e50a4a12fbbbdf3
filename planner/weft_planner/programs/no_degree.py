"""Why no pool can run the model at any of its degrees, and the longest context that would do."""

from collections.abc import Mapping

from weft_core.cost import CostProfile
from weft_core.shortfall import Remedy
from weft_planner.programs.limits import limits_of
from weft_planner.programs.smallest import smallest_layout
from weft_planner.request.infeasible import Infeasible, degrees_of
from weft_planner.request.reading import Request


def explain_no_degree(request: Request, profiles: Mapping[str, CostProfile]) -> Infeasible:
    """Explain that no pool can run the model at any of its degrees."""
    pools = [pool for pool in request.capacity.pools if pool.name in profiles]
    asked = sorted({n for pool in pools for n in pool.usable_degrees})
    known = [
        (profiles[pool.name], n) for pool in pools for n in pool.usable_degrees if n in profiles[pool.name].degrees
    ]
    if not known:
        has = sorted({n for profile in profiles.values() for n in profile.degrees})
        return Infeasible(
            "ProfileInvalid",
            f"profile.degrees: it has [{', '.join(map(str, has))}], the pools allow [{', '.join(map(str, asked))}]; "
            "profile one of the pools' degrees or add one of the profile's to capacity.pools.degrees",
        )
    profile, most = max(known, key=lambda item: item[0].longest_context(item[1]))
    longest = _longest_context(request, profiles)
    fix = f"lower maxModelLen to {longest}, or allow a larger degree" if longest else "allow a larger degree"
    return Infeasible(
        "ContextDoesNotFit",
        f"model.maxModelLen: {request.model.max_model_len} tokens of KV do not fit one worker of {profile.model} on "
        f"{profile.gpu}; degree {most} holds {profile.longest_context(most)} tokens: {fix}",
        remedies=(Remedy("model.maxModelLen", longest),) if longest else (),
    )


def _longest_context(request: Request, profiles: Mapping[str, CostProfile]) -> int:
    """Return the longest context with which there is a layout that keeps all other limits, 0 when there is none.

    The largest degree holds most, but two workers of it may be more than there is.
    """
    pools = [pool for pool in request.capacity.pools if pool.name in profiles]
    held = {
        profiles[pool.name].longest_context(n)
        for pool in pools
        for n in pool.usable_degrees
        if n in profiles[pool.name].degrees
    }
    for tokens in sorted((tokens for tokens in held if tokens > 0), reverse=True):
        asked = request.model_copy(update={"model": request.model.model_copy(update={"max_model_len": tokens})})
        degrees = {
            pool.name: degrees_of(pool, profiles[pool.name], tokens) if pool.name in profiles else []
            for pool in request.capacity.pools
        }
        if smallest_layout(asked, degrees, limits_of(asked, degrees)) is not None:
            return tokens
    return 0
