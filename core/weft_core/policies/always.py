"""Decide without looking: always remote (x = 0, Dynamo's plain mode), always local (x = 1), or co-located.

``always-remote`` takes a random prefill worker, which is what a dispatcher without load figures does; with them it
would be ``remote-jsq``. ``always-local`` runs first rounds on the decode worker, too (``fixed-x`` with x = 1 does not).
``colocated`` is the same for layouts whose workers all do both, so that reports name what was run.
"""

from collections.abc import Sequence

from weft_core.policies.features import LOCAL
from weft_core.policies.parameter import Parameter
from weft_core.policies.reasons import ALWAYS_LOCAL, ALWAYS_REMOTE, COLOCATED, NO_PREFILL_WORKER

REMOTE_SOURCE = "PPD, x = 0; Dynamo"
LOCAL_SOURCE = "PPD, x = 1"
COLOCATED_SOURCE = "vLLM without disaggregation"
PARAMETERS: tuple[Parameter, ...] = ()
PARAMS: tuple[float, ...] = (0.0,)


def route_always_remote(workers: int, order: Sequence[int]) -> tuple[int, int]:
    """Decide: the first worker of a random order."""
    if workers == 0:
        return LOCAL, NO_PREFILL_WORKER
    return order[0], ALWAYS_REMOTE


def route_always_local() -> tuple[int, int]:
    """Decide: the bound decode worker."""
    return LOCAL, ALWAYS_LOCAL


def route_colocated() -> tuple[int, int]:
    """Decide: the one worker that the session has."""
    return LOCAL, COLOCATED
