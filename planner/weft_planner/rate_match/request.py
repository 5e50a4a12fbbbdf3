"""Take rounds and servers from a planning request."""

from collections.abc import Collection

from weft_core.cost import CostProfile
from weft_core.layouts import Role
from weft_core.parallelism import Degree
from weft_planner.rate_match.matching import Servers
from weft_planner.rate_match.rounds import RoundShape, rounds_of
from weft_planner.rate_match.servers import ProfiledServer
from weft_planner.request.engines import step_limits
from weft_planner.request.reading import Request
from weft_planner.workload.sessions import draw


def drawn_rounds(request: Request) -> RoundShape:
    """Draw the rounds of a request's workload with its seed."""
    sample = draw(
        request.workload,
        max_model_len=request.model.max_model_len,
        round_seconds=request.slo.ttft + request.workload.mean_decode * request.slo.itl,
        seed=request.seed,
    )
    return rounds_of(sample, seed=request.seed)


def profiled_servers(request: Request, profile: CostProfile) -> Servers:
    """Return the servers of a cost profile at every degree that the pools allow; a side may have none."""
    limits = step_limits(request.engine.prefill), step_limits(request.engine.decode)
    context, generation = (allowed_degrees(request, role, profile.degrees) for role in ("prefill", "decode"))
    of = {n: ProfiledServer(profile, n, *limits) for n in sorted({*context, *generation})}
    return Servers([of[n] for n in context], [of[n] for n in generation], [*of.values()])


def allowed_degrees(request: Request, role: Role, known: Collection[Degree]) -> list[Degree]:
    """Return those of known degrees that some pool allows for a role."""
    pools = [pool for pool in request.capacity.pools if role in pool.roles]
    listed = {degree for pool in pools for degree in pool.usable_degrees}
    return sorted(listed & set(known))
