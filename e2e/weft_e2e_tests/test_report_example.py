"""The example that the demo applies is valid, and is planned for the very sessions that are replayed."""

import statistics

import pytest
import yaml

from weft_cli import running
from weft_e2e.demo.baseline import with_baseline
from weft_e2e.demo.cli import demo
from weft_e2e.demo.collect import simulated, slo_of
from weft_e2e.demo.run import choose, manifest_for
from weft_e2e.demo.settings import EXAMPLE, TRACE_LIMITS, Settings, repository_root
from weft_e2e.scenarios.manifests import changed, small_service
from weft_operator.api.service import DisaggInferenceService
from weft_planner.workload.file import request_form
from weft_planner.workload.traffic import Workload


def test_the_example_is_planned_for_the_sessions_of_the_default_demo() -> None:
    example = yaml.safe_load((repository_root() / EXAMPLE).read_text())

    manifest, notes = manifest_for(Settings(), choose(Settings()))

    assert manifest == example, "paste what `weft demo workload` prints into the example"
    assert len(notes) == 1
    assert "distributions fitted to these sessions" in notes[0]


def test_the_command_prints_the_examples_workload(capsys: pytest.CaptureFixture[str]) -> None:
    example = yaml.safe_load((repository_root() / EXAMPLE).read_text())

    assert running.run(demo, ["workload"], prog="weft demo") == 0

    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["workload"] == example["spec"]["workload"]
    assert "# arrivals are not recorded" in printed


def test_the_examples_workload_has_the_lengths_of_the_sessions() -> None:
    """New tokens vary by more than their mean, answers hardly: what means alone cannot say."""
    selection = choose(Settings())
    example = yaml.safe_load((repository_root() / EXAMPLE).read_text())
    (mix,) = Workload.model_validate(request_form(example["spec"]["workload"], where="spec.workload")).mix

    added = [r.added_tokens for s in selection.sessions for r in s.rounds[1:]]
    answers = [r.decode_tokens for s in selection.sessions for r in s.rounds]

    assert mix.increment.variation == pytest.approx(statistics.pstdev(added) / statistics.fmean(added), rel=0.1)
    assert mix.increment.variation > 1
    assert mix.decode.variation == pytest.approx(statistics.pstdev(answers) / statistics.fmean(answers), rel=0.1)
    assert mix.total_tokens == pytest.approx(
        sum(r.added_tokens + r.decode_tokens for s in selection.sessions for r in s.rounds) / len(selection.sessions),
        rel=0.02,
    )


def test_the_example_shows_the_default_policy() -> None:
    example = DisaggInferenceService.model_validate(yaml.safe_load((repository_root() / EXAMPLE).read_text()))

    assert example.spec.routing == type(example.spec.routing)()
    assert example.spec.routing.policy == "weft"


def test_other_sessions_bring_their_own_workload_and_say_so() -> None:
    settings = Settings(trace="gaia_whowhen", limits=TRACE_LIMITS["gaia_whowhen"])

    manifest, notes = manifest_for(settings, choose(settings))

    assert manifest["spec"]["workload"]["firstPrompt"]["mean"] < 1000
    assert notes[1] == "spec.workload of the example was replaced by the distributions of these sessions"


def test_the_manifests_are_accepted_by_the_api() -> None:
    for trace, limits in TRACE_LIMITS.items():
        settings = Settings(trace=trace, limits=limits)
        manifest, _notes = manifest_for(settings, choose(settings))
        DisaggInferenceService.model_validate({**manifest, "spec": with_baseline(manifest["spec"])})
    DisaggInferenceService.model_validate(small_service(prefill=(1, 2), decode=(1, 2), rdma=True))


def test_what_is_simulated_is_said_for_each_place() -> None:
    spec = yaml.safe_load((repository_root() / EXAMPLE).read_text())["spec"]

    here, elsewhere = simulated(spec, local=True), simulated(spec, local=False)

    assert len(here) == len(elsewhere) + 1
    assert "GPUs" in here[0]
    assert "in real time" in here[1]
    assert slo_of(spec["slo"]).ttft_s == 3.0
    real = changed({"spec": spec}, "spec.engine.type", "vllm")["spec"]
    assert simulated(real, local=False) == elsewhere[-1:]
