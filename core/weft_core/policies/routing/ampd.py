"""Route prefills by AMPD's Algorithm 1 with Eq. (1) and (2), exactly as printed (arXiv 2602.14516, section 4.1).

What the paper leaves open is decided here. A prefill worker whose statistics window holds no sample shows no load and
has slack. A decode worker without a sample has slack while it decodes nothing; otherwise its batch's predicted step
stands for its ITL, and a batch without a prediction has no slack. Among equal costs local goes first, then the first
worker. Hand-worked example (test_policy_ampd.py): TTFT SLO
2 s, alpha 0.9, windows 1.9 s and 1.9 s, so no worker has slack; windowed ITL 50 ms > 0.85 x 50 ms; then local costs
1.0 + 0.4 s, worker a 1.5 + 3.0 s, worker b 0.5 + 0.6 + 0.05 = 1.15 s: remote b.
"""

from weft_core.policies.finish import first_printed, shortest_queue
from weft_core.policies.inputs import LOCAL, RoutingInputs
from weft_core.policies.policy import Parameter, RoutingPolicy
from weft_core.policies.reasons import LEAST_COST, NO_PREFILL_WORKER, PROFILE_INCOMPLETE, reason

TTFT_SLACK = reason("ttft-slack", "a prefill worker's recent TTFT has slack (Algorithm 1, lines 1-3)")
ITL_SLACK = reason("itl-slack", "the decode worker's recent ITL has slack (Algorithm 1, lines 4-5)")

ALPHA = 0
BETA = 1
PARAMETERS = (
    Parameter("alpha", 0.9, 0.0, 2.0, "share", "of the TTFT SLO that a prefill worker with slack stays within"),
    Parameter("beta", 0.85, 0.0, 2.0, "share", "of the ITL SLO that a decode worker with slack stays within"),
)  # fmt: skip


def route_ampd(inputs: RoutingInputs) -> tuple[int, int]:
    """Decide where a prefill runs."""
    task, local, remote, params = inputs.task, inputs.local, inputs.remote, inputs.params
    limit = params[ALPHA] * task.ttft_slo
    for k in range(len(remote)):  # lines 1-3
        windowed = remote[inputs.order[k]].windowed_ttft
        if windowed != windowed or windowed <= limit:
            return inputs.order[k], TTFT_SLACK
    windowed = local.windowed_itl
    if windowed != windowed:  # no sample yet: answers in one piece show none until they end
        windowed = local.step_s if local.batch > 0 else 0.0
    if windowed <= params[BETA] * task.itl_slo:  # lines 4-5
        return LOCAL, ITL_SLACK
    here = local.prefill_s + local.queue_s  # line 6, Eq. (1)
    inputs.costs[0] = here
    best, there, missing = first_printed(remote, inputs.costs)  # lines 7-9
    if not missing and here == here:
        return best if there < here else LOCAL, LEAST_COST
    if len(remote) == 0:
        return LOCAL, NO_PREFILL_WORKER
    return shortest_queue(remote), PROFILE_INCOMPLETE


POLICY = RoutingPolicy(
    "ampd", "windowed slack, then least predicted time", "AMPD, Algorithm 1, Eq. (1) and (2)", route_ampd, PARAMETERS,
    order="ampd-window", predicts=True, corrected=False, reads_windows=True, reads_order=True,
)  # fmt: skip
