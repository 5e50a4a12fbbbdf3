"""Policy ``ppd`` weighs TTFT against TPOT as PPD prints it (section 6.3, Figure 5), with the table that it ships with.

The paper draws 500 conversations of ShareGPT and WildChat whose later turns are prefill-heavy and serves them on 1P_3D
at QPS 8 and 16. Here they are the grid's prefill-heavy workloads, each context class as often as the others. Counted
are the rounds that come while conversations arrive: the rate, and with it the cell, is another one afterwards.
"""

from statistics import fmean

import numpy as np
import pytest
from bench.paper.ppd import SLO
from bench.paper.published import PPD_LOCAL_SHARES
from bench.ppd_table import ENGINE, LAYOUT, MODEL, conversations, profile

from weft_core.policies.inputs import LOCAL
from weft_core.policies.ppd_cells import CONTEXTS, SHAPES
from weft_core.policies.routing.ppd import (
    CONTEXT_LONG,
    CONTEXT_SHORT,
    POLICY,
    RATIO_DECODE,
    RATIO_PREFILL,
    band,
)
from weft_planner.simulation import PolicyChoice, simulate
from weft_planner.workload.sessions import Size, draw

CONVERSATIONS = 500
RATES = (8.0, 16.0)


def local_share(weight: float, rate: float, context: str) -> float:
    """Return the share of second turns that the policy keeps on their decode workers."""
    until = CONVERSATIONS / rate
    rule = PolicyChoice(route="ppd", order="fcfs", binding="least-requests", params={"w_tpot": weight})
    found = []
    for workload in conversations()[context, "prefill-heavy"]:
        sample = draw(
            workload, max_model_len=32768, round_seconds=5.0, seed=7, rate=rate,
            size=Size(seconds=until), steady=False,
        )  # fmt: skip
        outcome = simulate(sample, LAYOUT, {"gpu": profile(MODEL)}, rule, SLO, options=ENGINE, seed=7)
        later = outcome.arrival < until
        later[sample.first_row] = False
        found.append(float((outcome.route[later] == LOCAL).mean()))
    return fmean(found)


@pytest.mark.parametrize(("weight", "paper"), PPD_LOCAL_SHARES.items())
def test_the_share_of_local_rounds_is_the_papers_within_15_points(weight: float, paper: float) -> None:
    ours = 100 * fmean(local_share(weight, rate, context) for rate in RATES for context in CONTEXTS)
    assert ours == pytest.approx(paper, abs=15)


def test_every_workload_of_the_grid_is_of_the_class_that_it_is_measured_for() -> None:
    for (context, shape), workloads in conversations().items():
        assert workloads
        for workload in workloads:
            sample = draw(workload, max_model_len=32768, round_seconds=5.0, seed=1, rate=2.0, size=Size(sessions=20))
            later = np.ones(sample.rows, bool)
            later[sample.first_row] = False
            ratio = sample.increment[later] / sample.tokens.mean()
            for history in sample.history[later]:
                assert CONTEXTS[band(history, POLICY.params[CONTEXT_SHORT], POLICY.params[CONTEXT_LONG])] == context
            for value in ratio:
                assert SHAPES[band(value, POLICY.params[RATIO_DECODE], POLICY.params[RATIO_PREFILL])] == shape
