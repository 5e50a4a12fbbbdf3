"""The example that the demo applies is valid, and is planned for the very sessions that are replayed."""

from dataclasses import replace

import yaml

from weft_e2e.demo.collect import simulated, slo_of
from weft_e2e.demo.run import choose, manifest_for
from weft_e2e.demo.settings import EXAMPLE, TRACE_LIMITS, Settings, repository_root
from weft_e2e.replay.selection import variations
from weft_e2e.replay.sessions import PlannedRound, PlannedSession
from weft_e2e.scenarios.manifests import changed, small_service
from weft_operator.api.service import DisaggInferenceService


def test_the_example_is_planned_for_the_sessions_of_the_default_demo() -> None:
    example = yaml.safe_load((repository_root() / EXAMPLE).read_text())

    manifest, notes = manifest_for(Settings(), choose(Settings()))

    assert manifest == example
    assert len(notes) == 1
    assert "the plan takes 0.6" in notes[0]


def test_other_sessions_bring_their_own_workload_and_say_so() -> None:
    settings = Settings(trace="claude_code", limits=TRACE_LIMITS["claude_code"])

    manifest, notes = manifest_for(settings, choose(settings))

    assert manifest["spec"]["workload"]["firstPrompt"]["mean"] > 3000
    assert notes[1] == "spec.workload of the example was replaced by the means of these sessions"


def test_the_manifests_are_accepted_by_the_api() -> None:
    for trace, limits in TRACE_LIMITS.items():
        settings = Settings(trace=trace, limits=limits)
        manifest, _notes = manifest_for(settings, choose(settings))
        DisaggInferenceService.model_validate(manifest)
    DisaggInferenceService.model_validate(small_service(prefill=(1, 2), decode=(1, 2), rdma=True))


def test_what_is_simulated_is_said_for_each_place() -> None:
    spec = yaml.safe_load((repository_root() / EXAMPLE).read_text())["spec"]

    here, elsewhere = simulated(spec, local=True), simulated(spec, local=False)

    assert len(here) == len(elsewhere) + 1
    assert "GPUs" in here[0]
    assert "in real time" in here[1]
    assert slo_of(spec["slo"]).ttft_s == 5.0
    real = changed({"spec": spec}, "spec.engine.type", "vllm")["spec"]
    assert simulated(real, local=False) == elsewhere[-1:]


def test_variation_is_spread_over_mean() -> None:
    rounds = (PlannedRound(10, 4, 0.0), PlannedRound(30, 4, 1.0))
    one = PlannedSession("a", 0.0, rounds)

    found = variations((one, replace(one, rounds=(PlannedRound(30, 4, 0.0),))))

    assert found == {"first prompts": 0.5, "later additions": 0.0, "answers": 0.0}
