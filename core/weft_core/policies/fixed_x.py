"""Run a fixed share x of later rounds on the decode worker, first rounds always on a prefill worker (PPD section 4.2).

x = 0 is classic disaggregation, x = 1 PPD's full append-prefill on D; 1/3, 1/2 and 2/3 are the paper's partial forms.
Which rounds those are is drawn per request. Remote ones go to the prefill worker that should finish first (Eq. (2) of
AMPD; the paper does not say which). Hand-worked example (test_policy_simple.py): x = 1/2, drawn 0.49: local; 0.5:
remote.
"""

from collections.abc import MutableSequence, Sequence

from weft_core.policies.features import LOCAL, TASK_ROUND, TASK_UNIFORM
from weft_core.policies.finish import offload
from weft_core.policies.parameter import Parameter, defaults
from weft_core.policies.reasons import FIRST_ROUND, NO_PREFILL_WORKER, SHARE

SOURCE = "PPD, section 4.2"
X = 0
PARAMETERS = (Parameter("x", 0.5, 0.0, 1.0, "share", "of later rounds that run on the decode worker"),)
PARAMS = defaults(PARAMETERS)


def route_fixed_x(
    task: Sequence[float],
    remote: Sequence[float],
    workers: int,
    params: Sequence[float],
    costs: MutableSequence[float],
) -> tuple[int, int]:
    """Decide by the number drawn for this task, ``TASK_UNIFORM`` in [0, 1)."""
    if workers == 0:
        return LOCAL, NO_PREFILL_WORKER
    if task[TASK_ROUND] >= 1 and task[TASK_UNIFORM] < params[X]:
        return LOCAL, SHARE
    return offload(remote, workers, costs, SHARE if task[TASK_ROUND] >= 1 else FIRST_ROUND)
