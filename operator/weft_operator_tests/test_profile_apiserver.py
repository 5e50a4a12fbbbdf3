"""A service's costs are measured under a real API server: by the very program of the Job, on engines that run.

There is no kubelet, so the test plays the Job controller: the engines of both Jobs run as processes of this machine,
with the arguments of the Jobs. They are mock engines, so what has to come out is known: the profile they follow.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from weft_core.cost import CostProfile
from weft_core.profile_json import profile_from_json
from weft_operator.api.objects import Manifest
from weft_operator.profiling import measure
from weft_operator.profiling.results import NotUsableError, read
from weft_operator.profiling.termination_message import unpacked
from weft_operator_tests.api import RealApi, small_service
from weft_operator_tests.cluster import condition, free_port, wait_for
from weft_operator_tests.fake_jobs import job_of, play_pod, say
from weft_operator_tests.samples import PROFILE_JSON
from weft_planner.profiling.measurements import GridCell
from weft_planner.profiling.validation import predict_cell

# Beside other tests on the same cores an engine's times are theirs as well, and the operator refuses such figures.
pytestmark = [pytest.mark.apiserver, pytest.mark.alone, pytest.mark.timeout(600, func_only=True)]

PATIENCE_S = 120.0
TRIES = 3
"""So often the engines are measured where a busy machine makes figures that are not used."""
DEGREE = 4
CELLS = (
    GridCell("prefill", DEGREE, history=0, increment=512),
    GridCell("prefill", DEGREE, history=1024, increment=1024),
    GridCell("step", DEGREE, batch=4, context=4 * 512),
    GridCell("step", DEGREE, batch=16, context=16 * 1024),
)


@contextmanager
def engine(container: Manifest, api: RealApi, namespace: str, mounted: str, port: int, folder: Path) -> Iterator[None]:
    """Run the engine of a Job's pod: its arguments, with ports and files of this machine."""
    config = api.read(f"api/v1/namespaces/{namespace}/configmaps/{mounted}")
    assert config is not None
    profile = folder / f"profile-{port}.json"
    profile.write_text(config["data"]["profile.json"])
    of_this_machine = {
        "--profile": str(profile),
        "--listen": f"127.0.0.1:{port}",
        "--side-channel-host": "127.0.0.1",
        "--side-channel-port": str(free_port()),
        "--engine-id": f"engine-{port}",
    }
    verb, *given = container["args"]
    assert verb == "mock-engine"
    words = [word for word in given if word.partition("=")[0] not in of_this_machine]
    words += [f"{name}={value}" for name, value in of_this_machine.items()]
    log = (folder / f"engine-{port}.log").open("wb")
    process = subprocess.Popen([sys.executable, "-m", "weft_mock", *words], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait(10)
        log.close()


@pytest.fixture
def alone(api: RealApi) -> Iterator[RealApi]:
    """Give the API server, and end the test's operator afterwards."""
    try:
        yield api
    finally:
        api.heal()


def test_what_the_engines_do_comes_out_as_the_profile_that_plans_are_made_with(alone: RealApi, tmp_path: Path) -> None:
    api = alone
    namespace = api.namespace()
    asked = {"analytic": {}, "measure": {"budget": "45s", "extraGpus": 8}}
    body = small_service(namespace, profile=asked)
    body["spec"]["capacity"]["pools"][0]["degrees"] = [DEGREE]
    operator = api.replica("a", namespace, WEFT_OPERATOR_IMAGE="localhost/weft-operator:none")
    operator.start()
    api.kube.apply(body)
    path = f"apis/weft.dev/v1alpha1/namespaces/{namespace}/disagginferenceservices/demo"

    reader = job_of(api, namespace, "-reads-", timeout=PATIENCE_S)
    play_pod(api, reader, ip="127.0.0.1")
    job = job_of(api, namespace, "-profile-", timeout=PATIENCE_S)
    pod = play_pod(api, job)
    template = job["spec"]["template"]["spec"]
    (mounted,) = [volume["configMap"]["name"] for volume in template["volumes"] if volume["name"] == "config"]
    ports = free_port(), free_port()
    own = template["initContainers"][-1]
    other = reader["spec"]["template"]["spec"]["containers"][0]
    words = list(template["containers"][0]["args"])
    assert "--decode-url=http://127.0.0.1:8000" in words
    words[0] = f"http://127.0.0.1:{ports[0]}"
    words[words.index("--decode-url=http://127.0.0.1:8000")] = f"--decode-url=http://127.0.0.1:{ports[1]}"
    said = tmp_path / "last-words"
    with (
        engine(own, api, namespace, mounted, ports[0], tmp_path),
        engine(other, api, namespace, mounted, ports[1], tmp_path),
    ):
        _measured(words, said)
    assert len(said.read_bytes()) <= 4096
    say(api, pod, said.read_text())

    def verdict() -> Manifest:
        found = api.read(path)
        assert found is not None
        return condition(found, "ProfileMeasured")

    wait_for("a verdict", lambda: verdict().get("reason") in {"Measured", "MeasurementUnusable"}, timeout=PATIENCE_S)
    assert verdict()["reason"] == "Measured", verdict()["message"]
    made = api.read(f"apis/weft.dev/v1alpha1/namespaces/{namespace}/costprofiles/demo-measured-nvidia-h20")
    assert made is not None
    measured, truth = profile_from_json(made["spec"]), profile_from_json(PROFILE_JSON)
    for cell in CELLS:
        assert _seconds(measured, cell) == pytest.approx(_seconds(truth, cell), rel=0.25), cell
    assert unpacked(said.read_text())["profile"]["degrees"][0]["fit"]["prefill"]["points"] >= 5
    wait_for(
        "the end of the engine that read",
        lambda: (
            not [item for item in api.items("apis/batch/v1/jobs", namespace) if "-reads-" in item["metadata"]["name"]]
        ),
        timeout=PATIENCE_S,
    )

    def planned_with_it() -> bool:
        config = api.read(f"api/v1/namespaces/{namespace}/configmaps/demo-plan")
        assert config is not None
        found = api.read(path)
        assert found is not None
        return condition(found, "Planned").get("status") == "True"

    wait_for("a plan", planned_with_it, timeout=PATIENCE_S)
    assert json.dumps(made["metadata"]["annotations"]).count(job["metadata"]["name"]) == 1


def _measured(words: list[str], said: Path) -> None:
    """Measure as the Job's program does, until nothing but the machine is left to blame for figures without use."""
    for left in reversed(range(TRIES)):
        assert measure.main([*words, f"--say={said}"]) == 0, said.read_text()
        try:
            read(said.read_text(), DEGREE)
        except NotUsableError:
            if not left:
                raise
        else:
            return


def _seconds(profile: CostProfile, cell: GridCell) -> float:
    found = predict_cell(profile, cell)
    assert found is not None
    return found
