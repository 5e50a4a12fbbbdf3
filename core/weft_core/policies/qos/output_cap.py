"""Cap answers while KV memory is scarce, so that what is admitted can end: quality for latency, ordinary classes first.

Up to ``pressure`` of the KV memory in use nothing is capped; from there the cap falls in a straight line from
``largest`` to ``least`` tokens at full memory. Hand-worked example (test_policy_qos.py): pressure 0.8, 90 % in use,
4,096 and 256 tokens: the cap is 4,096 - 0.5 x 3,840 = 2,176.
"""

from collections.abc import Sequence

from weft_core.policies.policy import Parameter, QosRule, defaults

PRESSURE = 0
LARGEST = 1
LEAST = 2
PROTECTED = 3
PARAMETERS = (
    Parameter("pressure", 0.8, 0.0, 0.99, "share", "of KV memory in use above which answers are capped"),
    Parameter("largest", 4096, 1, 1e7, "tokens", "the cap where it begins"),
    Parameter("least", 256, 1, 1e7, "tokens", "the cap at full memory"),
    Parameter("protected", 1.0, 0.0, 1e6, "priority", "from which nothing is capped"),
)
PARAMS = defaults(PARAMETERS)


def output_cap(asked: float, kv_use: float, priority: float, params: Sequence[float]) -> float:
    """Return how many tokens an answer may have, at most ``asked``; ``kv_use`` is the share of KV memory in use."""
    if priority >= params[PROTECTED] or not kv_use > params[PRESSURE]:
        return asked
    share = min(1.0, (kv_use - params[PRESSURE]) / (1.0 - params[PRESSURE]))
    cap = params[LARGEST] + share * (params[LEAST] - params[LARGEST])
    return min(asked, float(round(cap)))


POLICY = QosRule(
    "output-cap", "shorter answers while KV memory is scarce",
    "AI systems performance engineering, chapter 17, graceful degradation", PARAMETERS,
)  # fmt: skip
