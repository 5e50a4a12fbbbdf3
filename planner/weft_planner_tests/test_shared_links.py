"""Links work before time 0 as they do after it: steady-state samples begin there."""

import pytest

from weft_core.analytic import derive_profile
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_planner.simulation import Options, PolicyChoice, SloClass, layout_of, simulate
from weft_planner.simulation.options import LINKS, Links
from weft_planner.simulation.records import SERVED
from weft_planner.workload.sessions import Size, draw
from weft_planner.workload.traffic import Workload


@pytest.mark.parametrize("links", LINKS)
def test_sessions_that_began_before_time_0_do_not_wait_for_it(links: Links) -> None:
    profile = derive_profile(MODELS["Qwen/Qwen3-8B"], GPUS["nvidia-h20"], degrees=(1,))
    workload = Workload.model_validate(
        {"arrivalRate": 1, "rounds": 4, "firstPrompt": 2000, "increment": 500, "decode": 40, "gap": 3}
    )
    sample = draw(workload, max_model_len=32768, round_seconds=2.0, seed=3, size=Size(sessions=60))
    assert sample.arrival[0] < -10, "the sample must begin well before time 0"
    layout = layout_of("disaggregated", prefill={1: 2}, decode={1: 2})
    always = PolicyChoice(route="always-remote", order="fcfs")
    outcome = simulate(sample, layout, {"gpu": profile}, always, (SloClass(2.0, 0.05),), options=Options(links=links))
    assert (outcome.state == SERVED).all()
    assert outcome.ttft[outcome.arrival < 0].max() < 5.0
