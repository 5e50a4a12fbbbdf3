"""Run a fixed share x of later rounds on the decode worker, first rounds always on a prefill worker (PPD section 4.2).

x = 0 is classic disaggregation, x = 1 PPD's full append-prefill on D; 1/3, 1/2 and 2/3 are the paper's partial forms.
Which rounds those are is drawn per request. Remote ones go to the prefill worker that should finish first (Eq. (2) of
AMPD; the paper does not say which). Hand-worked example (test_policy_simple.py): x = 1/2, drawn 0.49: local; 0.5:
remote.
"""

from weft_core.policies.finish import stay_or_offload
from weft_core.policies.inputs import RoutingInputs
from weft_core.policies.policy import Parameter, RoutingPolicy
from weft_core.policies.reasons import FIRST_ROUND, reason

SHARE = reason("share", "the drawn share of later rounds that runs on the decode worker")

X = 0
PARAMETERS = (Parameter("x", 0.5, 0.0, 1.0, "share", "of later rounds that run on the decode worker"),)


def route_fixed_x(inputs: RoutingInputs) -> tuple[int, int]:
    """Decide by the number drawn for this task."""
    later = inputs.task.round >= 1
    return stay_or_offload(
        inputs, later and inputs.task.uniform < inputs.params[X], SHARE, SHARE if later else FIRST_ROUND
    )


POLICY = RoutingPolicy(
    "fixed-x", "a fixed share of later rounds on the decode worker", "PPD, section 4.2", route_fixed_x, PARAMETERS,
    reads_uniform=True,
)  # fmt: skip
