"""Shared links end their transfers also before time 0, where steady-state samples begin."""

from weft_core.analytic import derive_profile
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_planner.sessions import Size, draw
from weft_planner.simulation import Options, PolicyChoice, SloClass, layout_of, simulate
from weft_planner.simulation.outcome import SERVED
from weft_planner.traffic import Workload


def test_sessions_that_began_before_time_0_are_served_over_fair_links() -> None:
    profile = derive_profile(MODELS["Qwen/Qwen3-8B"], GPUS["nvidia-h20"], degrees=(1,))
    workload = Workload.model_validate(
        {"arrivalRate": 2, "rounds": 4, "firstPrompt": 2000, "increment": 500, "decode": 40, "gap": 3}
    )
    sample = draw(workload, max_model_len=32768, round_seconds=2.0, seed=3, size=Size(sessions=60))
    assert sample.arrival[0] < -10, "the sample must begin well before time 0"
    layout = layout_of("disaggregated", prefill={1: 2}, decode={1: 2})
    outcome = simulate(
        sample, layout, {"gpu": profile}, PolicyChoice(), (SloClass(2.0, 0.05),), options=Options(links="fair")
    )
    assert (outcome.state == SERVED).all()
