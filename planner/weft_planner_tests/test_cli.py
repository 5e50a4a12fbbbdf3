import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import yaml

import weft_cli as cli
from weft_planner.request import checks
from weft_planner.request.reading import request_of
from weft_planner_tests.effort import answered
from weft_planner_tests.requests import body

SERVICE = """
apiVersion: weft.dev/v1alpha1
kind: DisaggInferenceService
metadata: {name: demo}
spec:
  model: {name: meta-llama/Llama-3.1-70B-Instruct, maxModelLen: 32768, dtype: bfloat16}
  engine: {type: mock, kvTransfer: {connector: nixl, bidirectional: true}}
  slo: {ttft: 5s, itl: 50ms}
  workload:
    arrivalRate: 0.8
    rounds: {mean: 3}
    firstPrompt: {mean: 1027}
    increment: {mean: 1027}
    decode: {mean: 50}
    gap: {mean: 300ms}
  capacity:
    gpus: 16
    pools:
      - name: h20
        gpuType: nvidia-h20
        resource: nvidia.com/gpu
        gpusPerNode: 8
        degrees: [1, 2, 4, 8]
        roles: [prefill, decode]
"""


def run_solver(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weft_planner", "solve"],
        input=text,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_a_fresh_process_answers_a_request() -> None:
    """``test_repeats`` compares the bytes of two."""
    done = run_solver(json.dumps(body(**{"capacity.gpus": 4})))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["status"] == "ok"


def test_a_bad_request_ends_with_status_2_and_one_line() -> None:
    result = run_solver('{"model": {}}')
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "model.name: is missing" in result.stderr


def test_plan_prints_layout_predictions_and_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "dis.yaml"
    manifest.write_text(SERVICE)
    assert cli.main(["plan", "-f", str(manifest)]) == 0
    shown = capsys.readouterr().out
    for word in (
        "Plan ",
        "demo",
        "LAYOUT",
        "this plan",
        "ROLE",
        "prefill",
        "decode",
        "P95",
        "50 ms",
        "Why: ",
        "Predicted: ",
    ):
        assert word in shown


def test_plan_equals_the_answer_to_the_same_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "dis.yaml"
    manifest.write_text(SERVICE)
    assert cli.main(["plan", "-f", str(manifest), "-o", "json"]) == 0
    by_manifest = json.loads(capsys.readouterr().out)
    changes = {"model.dtype": "bfloat16", "analytic": {"memoryFraction": 0.9}, "silicon": {}}
    request = body(**changes, **{"engine.type": "mock"})
    del request["engine"]["layouts"]  # all that the engine can run
    assert by_manifest == json.loads(json.dumps(answered(request_of(request))))
    assert cli.main(["plan", "-f", str(manifest), "-o", "yaml", "--gpus", "8", "--objective", "cost"]) == 0
    smaller = yaml.safe_load(capsys.readouterr().out)
    assert smaller["plan"]["gpus"] <= 8
    assert smaller["plan"]["objective"] == "cost"


def test_plan_says_why_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "dis.yaml"
    manifest.write_text(SERVICE.replace("gpus: 16", "gpus: 2") + "  planning: {layouts: [disaggregated]}\n")
    assert cli.main(["plan", "-f", str(manifest)]) == 1
    assert "No plan for demo: TooFewGpus" in capsys.readouterr().out


def test_plan_refuses_what_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    none, binary = tmp_path / "none.yaml", tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe")
    assert cli.main(["plan", "-f", str(none)]) == 2
    assert capsys.readouterr().err == f"{none}: No such file or directory\n"
    assert cli.main(["plan", "-f", str(binary)]) == 2
    assert capsys.readouterr().err == f"{binary}: not UTF-8 text: invalid start byte at byte 0\n"


PROFILE = "kind: CostProfile\nmetadata: {name: measured}\nspec: {}\n"
USES_PROFILE = "  profile: {ref: {name: measured}}\n"


@pytest.mark.usefixtures("no_checks")
@pytest.mark.parametrize(
    ("more", "profile", "message"),
    [
        (USES_PROFILE, None, "No such file or directory"),
        (USES_PROFILE, "a: [", "not YAML: "),
        (USES_PROFILE, "kind: Pod", "holds no CostProfile; give --profile the file of one"),
        (USES_PROFILE, PROFILE.replace("measured", "other"), "holds CostProfile other, and the service's spec.profile"),
        (
            "",
            PROFILE,
            "--profile has no effect, because the service refers to no CostProfile; set spec.profile.",
        ),
    ],
    ids=["no file", "not YAML", "other kind", "other name", "no reference"],
)
def test_a_profile_that_would_not_be_used_is_refused_under_its_own_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, profile: str | None, message: str
) -> None:
    manifest, given = tmp_path / "dis.yaml", tmp_path / "profile.yaml"
    manifest.write_text(SERVICE + more)
    if profile is not None:
        given.write_text(profile)
    assert cli.main(["plan", "-f", str(manifest), "--profile", str(given)]) == 2
    assert f"{given}: {message}" in capsys.readouterr().err


@pytest.fixture
def no_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner without any part that knows the whole manifest."""
    monkeypatch.setattr(checks, "entry_points", lambda **_: [])


def two_faults(_: object) -> list[str]:
    return ["spec.a: wrong; mend it", "spec.b: wrong; mend it"]


def test_plan_refuses_what_an_installed_part_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(*, group: str, name: str) -> list[EntryPoint]:
        return [EntryPoint(name, f"{__name__}:two_faults", group)]

    monkeypatch.setattr(checks, "entry_points", installed)
    manifest = tmp_path / "dis.yaml"
    manifest.write_text(SERVICE)
    assert cli.main(["plan", "-f", str(manifest)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [f"{manifest}: {fault}" for fault in two_faults(None)]


@pytest.mark.parametrize("points", [[], [EntryPoint("DisaggInferenceService", "weft_no_such_part:f", checks.GROUP)]])
def test_plan_says_what_it_could_not_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, points: list[Any]
) -> None:
    monkeypatch.setattr(checks, "entry_points", lambda **_: points)
    manifest = tmp_path / "dis.yaml"
    manifest.write_text(SERVICE)
    assert cli.main(["plan", "-f", str(manifest)]) == 0
    assert "only the fields of the DisaggInferenceService that the planner reads" in capsys.readouterr().err
