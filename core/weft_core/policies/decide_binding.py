"""Choose the decode worker of a new session, by the code of a binding: the one door for router and simulator."""

from weft_core.policies.codes import KV_AWARE, LEAST_REQUESTS, PREFIX_AWARE, ROUND_ROBIN
from weft_core.policies.kv_aware import bind_kv_aware
from weft_core.policies.kv_headroom import bind_kv_headroom
from weft_core.policies.least_requests import bind_least_requests
from weft_core.policies.prefix_aware import bind_prefix_aware
from weft_core.policies.round_robin import bind_round_robin


def bind(
    code: int,
    need: float,
    kv_free: list[float],
    kv_capacity: list[float],
    sessions: list[float],
    prefix_hit: list[float],
    load: list[float],
    cursor: int,
) -> int:
    """Return the place of the worker to bind to, -1 when none has room for ``need`` tokens.

    Per worker: free KV and KV capacity in tokens, bound sessions, tokens of the prompt in its prefix cache, requests
    running or waiting; the router has them in lists, the simulator in arrays. ``cursor`` is the place where
    ``round-robin`` goes on; the caller sets it to chosen + 1.
    """
    if code == PREFIX_AWARE:
        return bind_prefix_aware(need, kv_free, kv_capacity, sessions, prefix_hit)
    if code == KV_AWARE:
        return bind_kv_aware(need, kv_free, kv_capacity, prefix_hit)
    if code == LEAST_REQUESTS:
        return bind_least_requests(need, kv_free, sessions, load)
    if code == ROUND_ROBIN:
        return bind_round_robin(need, kv_free, cursor)
    return bind_kv_headroom(need, kv_free, kv_capacity, sessions)
