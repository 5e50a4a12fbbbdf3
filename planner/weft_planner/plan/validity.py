"""State what a plan is valid for: the traffic it was made for, and the rates at which it stays the right one."""

import math

from weft_core.validity import Validity
from weft_planner.evaluation.ranking import Evaluation
from weft_planner.request.reading import Request

DIGITS = 6


def validity_of(request: Request, best: Evaluation) -> Validity:
    """Return the means of the request's workload and the rates between which nothing has to change.

    Up to the low end of the goodput's interval the SLO is promised; a plan that misses the SLO promises nothing beyond
    its own rate. For objective ``cost`` a load that is lower than the rate by more than the headroom may be served for
    less; for ``latency`` all GPUs are used at any load.
    """
    load = request.workload
    rate = load.arrival_rate
    goodput = best.predicted.goodput
    high = goodput.low if best.predicted.slo_met and goodput is not None else rate
    later = [(item.share * (item.rounds.mean - 1), item.increment.mean) for item in load.mix]
    weight = math.fsum(share for share, _ in later)
    figures = {
        "arrival_rate": rate,
        "rate_low": rate / (1 + request.headroom) if request.objective == "cost" else 0.0,
        "rate_high": max(rate, high),
        "rounds": load.mean_rounds,
        "first_prompt": math.fsum(item.share * item.first_prompt.mean for item in load.mix),
        "increment": math.fsum(share * mean for share, mean in later) / weight if weight > 0 else 0.0,
        "decode": load.mean_decode,
        "gap_s": load.mean_gap,
    }
    return Validity(**{name: round(value, DIGITS) for name, value in figures.items()})
