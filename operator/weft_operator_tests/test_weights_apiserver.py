"""Weights under real API servers: image volumes that are there or not, and a download by the Job's own program."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.config import kube_config

from weft_e2e.cluster.bare import bare_cluster
from weft_mock.weights import SHARDS, MockWeights
from weft_operator.api.objects import Manifest
from weft_operator.kube.connection import connect
from weft_operator.kube.image_volumes import REFUSAL, ImageVolumes
from weft_operator_tests.api import RealApi, small_service
from weft_operator_tests.cluster import condition, wait_for
from weft_operator_tests.fake_jobs import bind, complete, job_of, play_pod, say
from weft_operator_tests.test_weights_fetch import served

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600, func_only=True)]

PATIENCE_S = 120.0
GROUPS = "apis/weft.dev/v1alpha1/workergroups"
MODEL = "meta-llama/Llama-3.1-70B-Instruct"
TOKEN = "hf_do-not-tell"
HUB = "http://hub.models.svc:8080"


@pytest.mark.parametrize(("gates", "refusal"), [("", ""), ("ImageVolume=false", REFUSAL)], ids=["with", "without"])
def test_an_api_server_says_whether_it_takes_image_volumes(
    gates: str, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bare_cluster(tmp_path, feature_gates=gates) as bare:
        # The library reads $KUBECONFIG when it is imported.
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(bare.kubeconfig()))
        assert ImageVolumes(connect()).refusal("default", "registry.example.com/models/llama:1") == refusal


@pytest.fixture
def own(api: RealApi) -> Iterator[RealApi]:
    """Give the API server, and end the test's operator afterwards."""
    try:
        yield api
    finally:
        api.heal()


def test_workers_start_when_the_jobs_own_program_has_downloaded_what_they_load(own: RealApi, tmp_path: Path) -> None:
    """There is no kubelet and no controller of Jobs or volumes: the test plays these."""
    api, namespace = own, own.namespace()
    path = f"apis/weft.dev/v1alpha1/namespaces/{namespace}/disagginferenceservices/demo"
    api.kube.run("-n", namespace, "create", "secret", "generic", "hub", f"--from-literal=token={TOKEN}")
    api.kube.run("-n", namespace, "label", "secret", "hub", "weft.dev/use=model")
    hub = MockWeights(repo=MODEL, token=TOKEN, break_after=1 << 20)
    with served(hub) as url:
        body = small_service(namespace)
        body["spec"]["model"] |= {"source": source_at(HUB)}
        api.replica("a", namespace, WEFT_OPERATOR_IMAGE="localhost/weft-operator:none").start()
        api.kube.apply(body)
        job = job_of(api, namespace, "demo-weights-", timeout=PATIENCE_S)
        assert api.items(GROUPS, namespace) == [], "no worker before its weights"
        said = fetched(job, tmp_path, url)
    assert [hub.asked[name] for name in SHARDS] == [2, 2], "it broke once and went on"
    bind(api, namespace, "demo-weights")
    pod = play_pod(api, job)
    say(api, pod, said, container="weights")
    complete(api, job)

    def told(kind: str) -> Manifest:
        return condition(api.read(path) or {}, kind)

    wait_for("a serving service", lambda: told("Ready").get("reason") == "Serving", timeout=PATIENCE_S)
    assert told("ModelReady")["reason"] == "WeightsReady"
    assert "the weights (8.39 MB, version 0123456789abcdef" in told("ModelReady")["message"]
    workers = [pod for pod in api.items("api/v1/pods", namespace) if "weft.dev/worker" in pod["metadata"]["labels"]]
    assert len(workers) >= 2
    (folder,) = {word.removeprefix("--weights=/models/") for pod in workers for word in engine_args(pod, "--weights")}
    assert {file.name for file in (tmp_path / folder).glob("*.safetensors")} == set(SHARDS)
    assert len(api.items("apis/batch/v1/jobs", namespace)) == 1, "one download for all of them"
    texts = [json.dumps(api.items(kind, namespace)) for kind in ("api/v1/pods", "apis/batch/v1/jobs", "api/v1/events")]
    assert TOKEN not in "".join((json.dumps(api.read(path)), *texts))


def source_at(url: str) -> Manifest:
    """Return a cached source at a hub."""
    cache = {"claim": {"size": "1Gi"}}
    return {"huggingFace": {"endpoint": url, "tokenSecretRef": {"name": "hub", "key": "token"}, "cache": cache}}


def fetched(job: Manifest, root: Path, url: str) -> str:
    """Run the program of a Job with its own arguments and variables, but for volume and hub; return its last words."""
    container = job["spec"]["template"]["spec"]["containers"][0]
    env = {item["name"]: item.get("value", "") for item in container["env"]}
    (secret,) = [item for item in container["env"] if "secretKeyRef" in item.get("valueFrom", {})]
    assert secret == {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    assert HUB in env["WEFT_WEIGHTS_SOURCE"]
    env["WEFT_WEIGHTS_SOURCE"] = env["WEFT_WEIGHTS_SOURCE"].replace(HUB, url)
    del env["WEFT_REDIS_URL_FILE"]  # in a volume of the pod
    env |= {"HF_TOKEN": TOKEN, "POD_NAME": "x", "WEFT_REDIS_URL": ""}
    words = [word.replace("--root=/weights", f"--root={root}") for word in container["args"]]
    said = root / "last-words"
    argv = [sys.executable, *container["command"][1:], *words, f"--say={said}"]
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    return said.read_text(encoding="utf-8")


def engine_args(pod: Manifest, flag: str) -> list[str]:
    """Return the arguments of a worker's engine that begin so."""
    (engine,) = [container for container in pod["spec"]["containers"] if container["name"] == "engine"]
    return [word for word in engine["args"] if word.startswith(f"{flag}=")]
