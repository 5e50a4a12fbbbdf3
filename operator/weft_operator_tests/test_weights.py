"""What is rendered and decided for cached weights: claims, Jobs, sidecars, and when what is removed."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from weft_e2e.checks.openshift import check_restricted_v2
from weft_operator.api.model import Model
from weft_operator.api.model_cache import CachedModel, cached_model
from weft_operator.api.objects import Manifest
from weft_operator.api.planning import MeasureProfile
from weft_operator.errors import ForbiddenError, InvalidError, Right, TransientError
from weft_operator.kube.image_volumes import REFUSAL, ImageVolumes
from weft_operator.profiling.jobs import profile_job
from weft_operator.profiling.targets import MeasurementTarget
from weft_operator.render import weights
from weft_operator.render.engines.adapters import engine_container
from weft_operator.render.engines.container import EngineRequest
from weft_operator.render.inputs import Rendering
from weft_operator.render.objects import mounts_of
from weft_operator.weights import job_status
from weft_operator.weights.progress import Progress, ProgressReader
from weft_operator_tests.samples import KEY, SETTINGS, TOKEN, rendered, rendering
from weft_operator_tests.test_engines import BODIES
from weft_operator_tests.valid import changed, service, spec, vllm_service

GOLDEN = Path(__file__).parent / "golden" / "weights.yaml"
OPERATOR = "registry.example.com/weft-operator:1"
TOKEN_REF = {"tokenSecretRef": {"name": "huggingface", "key": "token"}}
CLAIM = {
    "huggingFace": {**TOKEN_REF, "revision": "v1", "cache": {"claim": {"size": "300Gi", "storageClassName": "nfs"}}}
}
NODE = {"huggingFace": {**TOKEN_REF, "revision": "v1", "cache": {"node": {"path": "/var/lib/weft"}}}}
S3 = {
    "s3": {
        "endpoint": "https://minio.example.com",
        "bucket": "models",
        "prefix": "llama/70b",
        "credentialsSecretRef": {"name": "s3"},
        "cache": {"claim": {"existingClaim": "shared"}},
    }
}
OCI = {"oci": {"reference": "registry.example.com/models/llama:1", "path": "weights"}}


def with_source(source: dict[str, Any], body: Manifest | None = None, *, redis: str = "") -> Rendering:
    base = rendering(changed(body or service(), "spec.model.source", source))
    settings = replace(SETTINGS, operator_image=OPERATOR, redis_url=redis or SETTINGS.redis_url)
    return replace(base, settings=settings)


def model_of(base: Rendering) -> CachedModel:
    found = cached_model(base.spec.model)
    assert found is not None
    return found


def test_objects_are_as_pinned() -> None:
    """WEFT_UPDATE_GOLDEN=1 rewrites the file; read the diff."""
    claim, s3, node = with_source(CLAIM, redis="redis://:secret@redis:6379/0"), with_source(S3), with_source(NODE)
    asked = model_of(claim).cache.claim
    assert asked is not None
    found = [
        weights.claim(claim, asked),
        *(weights.fetch_job(one, mounts_of(one, token=TOKEN), model_of(one), claim_uid="1-2-3") for one in (claim, s3)),
        weights.remove_job(claim, model_of(claim).key, model_of(claim).volume("demo")),
        *weights.sidecar(node, mounts_of(node, token=TOKEN), model_of(node)),
    ]
    text = yaml.safe_dump_all(found, sort_keys=False, width=120)
    if os.environ.get("WEFT_UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")
    assert "secret" not in text.replace("secretKeyRef", "").replace("secretName", "").replace("secret:", "")


def test_openshift_admits_the_jobs_that_download_and_remove() -> None:
    base = with_source(CLAIM)
    base = replace(base, settings=replace(base.settings, openshift=True))
    model = model_of(base)
    fetch = weights.fetch_job(base, mounts_of(base, token=TOKEN), model, claim_uid="1-2-3")
    for job in (fetch, weights.remove_job(base, model.key, model.volume("demo"))):
        check_restricted_v2(job["metadata"]["name"], job["spec"]["template"]["spec"])


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "neuron"])
@pytest.mark.parametrize("source", [CLAIM, NODE, S3, OCI], ids=["claim", "node", "s3", "oci"])
def test_every_engine_loads_from_the_cache_offline_and_without_a_token(engine: str, source: dict[str, Any]) -> None:
    asked = spec(changed(BODIES[engine], "spec.model.source", source))
    container = engine_container(asked, EngineRequest(role="decode", degree=8, default_image="", service=KEY))
    cached = cached_model(asked.model)
    folder = "/models/weights" if cached is None else f"/models/default/demo/{cached.key}"
    assert any(word.removeprefix("--model-path=").removeprefix("--model=") == folder for word in container.args)
    assert not any(word.startswith("--revision") for word in container.args)
    assert ("HF_HUB_OFFLINE", "1") in container.env
    assert container.secret_env == ()
    assert [mount["readOnly"] for mount in container.mounts] == [True]
    if engine != "tensorrt-llm":
        assert f"--served-model-name={asked.model.name}" in container.args


def test_the_mock_engine_insists_on_weights_that_are_cached() -> None:
    container = engine_container(
        with_source(CLAIM).spec, EngineRequest(role="decode", degree=8, default_image="", service=KEY)
    )
    assert f"--weights=/models/default/demo/{model_of(with_source(CLAIM)).key}" in container.args


def test_only_what_is_loaded_makes_another_model() -> None:
    def key(source: dict[str, Any]) -> str:
        return model_of(with_source(source)).key

    hub = CLAIM["huggingFace"]
    assert key(CLAIM) == key(NODE), "where it is kept is no part of it"
    assert key({"huggingFace": {**hub, "tokenSecretRef": {"name": "other", "key": "token"}}}) == key(CLAIM)
    others = [
        {"huggingFace": {**hub, "revision": "v2"}},
        {"huggingFace": {**hub, "endpoint": "https://hub.example.com"}},
        {"huggingFace": {**hub, "exclude": ["*.bin"]}},
        S3,
        {"s3": {**S3["s3"], "prefix": "llama/8b"}},
    ]
    assert len({key(source) for source in (CLAIM, *others)}) == 6


def test_a_larger_claim_restarts_no_worker_and_another_revision_does() -> None:
    def revision(source: dict[str, Any]) -> str:
        return with_source(source, vllm_service()).revision

    hub = CLAIM["huggingFace"]
    larger = {"huggingFace": {**hub, "cache": {"claim": {"size": "600Gi", "storageClassName": "nfs"}}}}
    assert revision(larger) == revision(CLAIM)
    assert revision({"huggingFace": {**hub, "revision": "v2"}}) != revision(CLAIM)
    plain = {"huggingFace": {**TOKEN_REF, "revision": "v1"}}
    body = Model.model_validate({"name": "a/b", "source": plain}).identity()
    assert body["source"] == {"huggingFace": {**TOKEN_REF, "revision": "v1"}, "pvc": None}, (
        "as before there were caches"
    )


def test_on_nodes_the_engine_waits_for_the_sidecar_that_holds_the_weights() -> None:
    workers = [item for item in rendered(with_source(NODE)) if item["kind"] == "StatefulSet"]
    assert workers
    for item in workers:
        pod = item["spec"]["template"]["spec"]
        router, weights = pod["initContainers"]
        assert (router["name"], weights["name"], weights["restartPolicy"]) == ("router", "weights", "Always")
        assert weights["startupProbe"]["failureThreshold"] * weights["startupProbe"]["periodSeconds"] == 86400
        assert {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "huggingface", "key": "token"}}} in weights[
            "env"
        ]
        engine = pod["containers"][0]
        assert all(variable["name"] != "HF_TOKEN" for variable in engine["env"])
        mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in engine["volumeMounts"]}
        assert mounts["/models"] is True
        volume = next(volume for volume in pod["volumes"] if volume["name"] == "model")
        assert volume["hostPath"] == {"path": "/var/lib/weft", "type": "Directory"}


@pytest.mark.parametrize("source", [CLAIM, NODE], ids=["claim", "node"])
def test_a_job_that_measures_reads_the_same_weights(source: dict[str, Any]) -> None:
    base = with_source(source, vllm_service())
    target = MeasurementTarget(gpu="nvidia-h20", degree=8, pool="h20")
    job = profile_job(base, mounts_of(base, token=TOKEN), target, MeasureProfile(), name="demo-profile-8-x", reader="")
    pod = job["spec"]["template"]["spec"]
    engine = next(container for container in pod["initContainers"] if container["name"] == "engine")
    assert f"/models/default/demo/{model_of(base).key}" in engine["args"]
    assert {"name": "model", "mountPath": "/models", "readOnly": True} in engine["volumeMounts"]
    names = [container["name"] for container in pod["initContainers"]]
    assert names == (["engine"] if source is CLAIM else ["weights", "engine"]), (
        "the engine waits for its node's weights"
    )
    mounted = {mount["name"] for container in pod["initContainers"] for mount in container["volumeMounts"]}
    assert mounted <= {volume["name"] for volume in pod["volumes"]}


def test_downloads_take_the_proxies_of_the_engine_and_nothing_else_of_its_environment() -> None:
    env = [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}, {"name": "NCCL_DEBUG", "value": "WARN"}]
    base = with_source(CLAIM, changed(service(), "spec.engine.env", env))
    job = weights.fetch_job(base, mounts_of(base, token=TOKEN), model_of(base), claim_uid="1")
    names = [variable["name"] for variable in job["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert names == ["POD_NAME", "WEFT_WEIGHTS_SOURCE", "HTTPS_PROXY", "HF_TOKEN", "WEFT_REDIS_URL_FILE"]


def test_no_token_is_in_an_argument() -> None:
    base = with_source(S3)
    job = weights.fetch_job(base, mounts_of(base, token=TOKEN), model_of(base), claim_uid="1")
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == ["fetch", "--root=/weights", f"--model=default/demo/{model_of(base).key}"]
    names = {variable["name"]: "valueFrom" in variable for variable in container["env"] if "AWS" in variable["name"]}
    assert names == {"AWS_ACCESS_KEY_ID": True, "AWS_SECRET_ACCESS_KEY": True, "AWS_SESSION_TOKEN": True}


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (None, "its progress is not known"),
        (Progress(0, 0, 0), "listing the files"),
        (Progress(12_300_000_000, 141_000_000_000, 340e6), "12.3 GB of 141 GB, 340 MB/s, about 6 min left"),
        (Progress(140_000_000_000, 141_000_000_000, 340e6), "140 GB of 141 GB, 340 MB/s, about 3 s left"),
        (Progress(12_300_000_000, 141_000_000_000, 0), "12.3 GB of 141 GB, nothing in the last half minute"),
        (Progress(141, 141, 5), "0.141 kB of 0.141 kB; verifying"),
    ],
)
def test_progress_is_reported_in_words(progress: Progress | None, text: str) -> None:
    assert job_status.progress_text(progress) == text


async def test_without_redis_there_is_no_progress_and_nothing_waits() -> None:
    reader = ProgressReader("redis://127.0.0.1:1/0")
    assert await reader.read(KEY, ["a"]) == {}
    await reader.close()


class Checking:
    """An API server that answers the question for image volumes by the volumes that a test says."""

    def __init__(self, volumes: list[Manifest] | None) -> None:
        self.volumes = volumes
        self.asked: list[Manifest] = []

    def create(self, manifest: Manifest, *, dry_run: bool) -> Manifest:
        assert dry_run
        self.asked.append(manifest)
        pod = {"volumes": self.volumes} if self.volumes else {}
        return {"spec": {"template": {"spec": pod}}}


@pytest.mark.parametrize("dropped", [None, [{"name": "model", "emptyDir": {}}]], ids=["dropped", "emptied"])
def test_image_volumes_are_asked_for_once_where_there_are_any(dropped: list[Manifest] | None) -> None:
    api = Checking(dropped)
    images = ImageVolumes(api)  # type: ignore[arg-type]
    assert [images.refusal("default", "m:1"), images.refusal("default", "m:1")] == [REFUSAL, REFUSAL]
    assert len(api.asked) == 1, "a refusal holds for a while"
    api.volumes, images._check_at = [{"name": "model", "image": {"reference": "x"}}], 0.0
    assert [images.refusal("default", "m:1"), images.refusal("other", "n:1")] == ["", ""]
    assert len(api.asked) == 2
    pod = api.asked[1]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "m:1", "a policy of the cluster may refuse any other"
    assert pod["volumes"][0]["image"] == {"reference": "m:1"}


class Refusing:
    """An API server that refuses the question, or does not answer it."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def create(self, _manifest: Manifest, *, dry_run: bool) -> Manifest:
        assert dry_run
        raise self.error


def test_a_refusal_by_a_policy_says_nothing_of_image_volumes() -> None:
    for error in (ForbiddenError("exceeded quota", status=403), InvalidError("denied by a webhook", status=422)):
        assert ImageVolumes(Refusing(error)).refusal("default", "m:1") == ""  # type: ignore[arg-type]
    right = Right("create", "jobs", "batch", "default")
    for other in (TransientError("no answer"), ForbiddenError("may not", status=403, right=right)):
        with pytest.raises(type(other)):
            ImageVolumes(Refusing(other)).refusal("default", "m:1")  # type: ignore[arg-type]


def test_an_end_is_read_from_the_job() -> None:
    when = "2026-01-01T00:00:00Z"
    job = {
        "status": {
            "conditions": [
                {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "lastTransitionTime": when}
            ]
        }
    }
    assert job_status.job_end(job) == (False, "BackoffLimitExceeded", datetime(2026, 1, 1, tzinfo=UTC))
    assert job_status.job_end({"status": {"conditions": [{"type": "Suspended", "status": "True"}]}}) is None
    words = json.dumps({"bytes": 141_000_000_000, "version": "abc", "seconds": 1})
    assert job_status.describe_download(words) == "141 GB, version abc"
    assert job_status.describe_download("Killed") == ""
