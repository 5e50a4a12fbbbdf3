"""Whole passes over services whose weights are cached: workers wait for them, and what nobody uses any more goes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from weft_operator.api.objects import TOKEN_HASH_ANNOTATION, Manifest, ServiceKey
from weft_operator.api.service_token import read_token
from weft_operator.errors import InvalidError, StalledError
from weft_operator.kube.image_volumes import REFUSAL
from weft_operator.kube.leader_election.namespace_claims import FindOtherOperator, no_other_operator
from weft_operator.settings import Settings
from weft_operator.weights.progress import Progress
from weft_operator_tests.samples import KEY, SETTINGS
from weft_operator_tests.test_weights import CLAIM, NODE, OCI, OPERATOR, S3, model_of, with_source
from weft_operator_tests.valid import changed, service
from weft_operator_tests.world import World, summary


class Cached(World):
    """A service with cached weights; the test plays the Job controller and the pod that downloads."""

    def __init__(self, source: dict[str, Any]) -> None:
        self.progress: dict[str, Progress] = {}
        super().__init__(changed(service(), "spec.model.source", source))

    def restart(
        self, settings: Settings | None = None, *, other_operator: FindOtherOperator = no_other_operator
    ) -> None:
        super().restart(settings or replace(SETTINGS, operator_image=OPERATOR), other_operator=other_operator)
        self.reconciler._progress = self._read

    async def _read(self, _key: ServiceKey, pods: Sequence[str]) -> Mapping[str, Progress]:
        return {pod: self.progress[pod] for pod in pods if pod in self.progress}

    def model(self) -> tuple[str, str, str]:
        found = self.cluster.condition("ModelReady")
        return found["status"], found["reason"], found["message"]

    def job(self) -> Manifest:
        """Return the newest Job that downloads."""
        return [
            item
            for item in self.cluster.objects.values()
            if item["kind"] == "Job" and "-rm-" not in item["metadata"]["name"]
        ][-1]

    def start(self) -> str:
        """Let the Job's pod run; return its name."""
        job = self.job()
        name = f"{job['metadata']['name']}-x"
        labels = {
            **job["spec"]["template"]["metadata"]["labels"],
            "batch.kubernetes.io/job-name": job["metadata"]["name"],
        }
        metadata = {"name": name, "namespace": "default", "labels": labels}
        self.cluster.pods[name] = {
            "kind": "Pod",
            "metadata": metadata,
            "spec": job["spec"]["template"]["spec"],
            "status": {},
        }
        return name

    def end(self, message: str, *, failed: bool = False, job: Manifest | None = None) -> None:
        """Let a Job end, with these last words of its pod."""
        ended = job or self.job()
        name = f"{ended['metadata']['name']}-x"
        if name in self.cluster.pods:
            state = {"terminated": {"exitCode": 2 if failed else 0, "message": message}}
            self.cluster.pods[name]["status"] = {"containerStatuses": [{"name": "weights", "state": state}]}
        since = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        kind = "Failed" if failed else "Complete"
        ended["status"] = {
            "conditions": [{"type": kind, "status": "True", "reason": kind, "lastTransitionTime": since}]
        }


WORDS = json.dumps({"bytes": 141_200_000_000, "version": "abc123", "seconds": 600.0})


async def loaded(source: dict[str, Any]) -> Cached:
    world = Cached(source)
    world.cluster.claims["shared"] = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "shared", "uid": "shared-1"},
    }
    await world.until_quiet()
    world.start()
    world.end(WORDS)
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "Serving")
    return world


async def test_a_claim_that_is_deleted_under_its_workers_is_reported_and_not_looked_at_every_second() -> None:
    world = await loaded(CLAIM)
    claim = next(item for item in world.cluster.objects.values() if item["kind"] == "PersistentVolumeClaim")
    claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    outcome = await world.reconciler.reconcile(KEY)
    assert outcome.requeue_after == 10
    assert "claim demo-weights is being deleted, which ends once no pod mounts it" in world.model()[2]
    assert summary(world)["Ready"] == ("True", "Serving"), "they have read what they need"


async def test_workers_start_once_the_weights_are_there() -> None:
    world = Cached(CLAIM)
    await world.until_quiet()
    assert world.cluster.names("PersistentVolumeClaim") == ["demo-weights"]
    assert world.cluster.names("Job") == [f"demo-weights-{model_of(with_source(CLAIM)).key}"]
    assert world.cluster.names("WorkerGroup") == world.cluster.names("Deployment") == [], (
        "nothing holds a GPU meanwhile"
    )
    found = summary(world)
    assert (found["Ready"], found["Progressing"]) == (("False", "ModelNotReady"), ("True", "WaitingForModel"))
    assert found["Planned"] == ("True", "PlanReady")
    assert world.cluster.condition("Reconciling")["status"] == "True"
    assert world.cluster.service["status"]["plan"]["number"] == 1
    assert world.model()[:2] == ("False", "Downloading")

    pod = world.start()
    world.progress[pod] = Progress(12_300_000_000, 141_200_000_000, 340e6)
    outcome = await world.step()
    assert outcome.requeue_after is not None
    assert outcome.requeue_after <= 10
    assert world.model()[2].endswith("downloads the weights: 12.3 GB of 141 GB, 340 MB/s, about 6 min left")

    world.end(WORDS)
    await world.until_quiet()
    assert world.model() == (
        "True",
        "WeightsReady",
        "the weights (141 GB, version abc123) are verified and on claim demo-weights",
    )
    assert summary(world)["Ready"] == ("True", "Serving")
    assert len(world.cluster.names("Job")) == 1, "three workers, one download"
    assert len(world.cluster.names("StatefulSet")) == 3
    assert await world.until_quiet() == 1


async def test_a_failed_download_says_why_and_is_tried_again_later() -> None:
    world = Cached(CLAIM)
    await world.until_quiet()
    world.start()
    world.end("https://huggingface.co refuses acme/tiny (401); see that the token is valid", failed=True)
    await world.until_quiet()
    status, reason, message = world.model()
    assert (status, reason) == ("False", "FetchFailed")
    assert "refuses acme/tiny (401); see that the token is valid; it is tried again 5 min after it failed" in message
    uid = world.job()["metadata"]["uid"]
    world.now += timedelta(minutes=6)
    await world.until_quiet()
    assert world.job()["metadata"]["uid"] != uid
    assert world.model()[:2] == ("False", "Downloading")


async def test_a_change_of_the_revision_keeps_the_workers_until_the_new_weights_are_there() -> None:
    world = await loaded(CLAIM)
    before = world.cluster.names("WorkerGroup")
    old = world.job()["metadata"]["name"]
    newer = {"huggingFace": {**CLAIM["huggingFace"], "revision": "v2"}}
    world.cluster.change(model={**world.cluster.service["spec"]["model"], "source": newer})
    await world.until_quiet()
    assert world.cluster.names("WorkerGroup") == before
    found = summary(world)
    assert (found["Ready"], found["Progressing"]) == (("True", "Serving"), ("True", "WaitingForModel"))
    assert world.cluster.service["status"]["observedGeneration"] == 1, "nothing about the new spec yet"
    assert sorted(world.cluster.names("Job"))[0] != sorted(world.cluster.names("Job"))[1]

    world.start()
    world.end(WORDS)
    for _ in range(30):
        world.cluster.settle()
        await world.step()
        world.now += timedelta(seconds=30)
    assert not set(world.cluster.names("WorkerGroup")) & set(before)
    assert summary(world)["Ready"] == ("True", "Serving")
    key = old.removeprefix("demo-weights-")
    assert world.cluster.names("Job") == sorted([f"demo-weights-rm-{key}", world.job()["metadata"]["name"]])
    assert old not in world.cluster.names("Job"), "the weights before are removed once no worker uses them"


async def test_a_download_outlives_another_change_of_the_spec() -> None:
    world = await loaded(CLAIM)
    newer = {"huggingFace": {**CLAIM["huggingFace"], "revision": "v2"}}
    world.cluster.change(model={**world.cluster.service["spec"]["model"], "source": newer})
    await world.until_quiet()
    jobs = world.cluster.names("Job")
    assert len(jobs) == 2
    world.cluster.change(slo={"ttft": "3s", "itl": "40ms"})
    await world.reconciler.reconcile(KEY)
    assert summary(world)["Planned"] == ("Unknown", "Planning"), "the plan before, and its spec, are rendered meanwhile"
    await world.until_quiet()
    assert world.cluster.names("Job") == jobs


async def test_a_claim_of_somebody_else_is_not_filled() -> None:
    world = Cached(CLAIM)
    world.cluster.claims["demo-weights"] = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "demo-weights", "uid": "x"},
    }
    taken = StalledError(
        "NameTaken", "PersistentVolumeClaim default/demo-weights exists and was not made for this service"
    )
    world.cluster.fail = lambda action: taken if action.key.kind == "PersistentVolumeClaim" else None
    await world.until_quiet()
    assert world.model()[:2] == ("False", "FetchFailed")
    assert "was not made for this service" in world.model()[2]
    assert world.cluster.names("Job") == []


async def test_a_claim_that_was_recreated_is_filled_again() -> None:
    world = await loaded(CLAIM)
    uid = world.job()["metadata"]["uid"]
    world.cluster.named("PersistentVolumeClaim", "demo-weights")["metadata"]["uid"] = "another"
    await world.until_quiet()
    assert world.job()["metadata"]["uid"] != uid
    assert world.model()[:2] == ("False", "Downloading")
    assert len(world.cluster.names("StatefulSet")) == 3, "workers that run have what they loaded"


async def test_an_existing_claim_is_used_and_one_that_is_missing_is_reported() -> None:
    world = Cached(S3)
    await world.until_quiet()
    assert world.model()[:2] == ("False", "ClaimNotFound")
    assert world.model()[2].startswith("spec.model.source: there is no PersistentVolumeClaim shared")
    assert summary(world)["Progressing"] == ("False", "ModelRefused")
    assert world.cluster.condition("Stalled")["status"] == "True"
    assert world.cluster.names("PersistentVolumeClaim") == []
    world.cluster.claims["shared"] = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "shared", "uid": "shared-1"},
    }
    await world.until_quiet()
    assert world.model()[:2] == ("False", "Downloading")


async def test_without_a_cache_any_more_its_claim_and_jobs_go_after_the_workers() -> None:
    world = await loaded(CLAIM)
    world.cluster.change(model={**world.cluster.service["spec"]["model"], "source": {"huggingFace": {}}})
    await world.step()
    assert world.model()[:2] == ("True", "RemovingWeights")
    assert world.cluster.names("PersistentVolumeClaim") == ["demo-weights"], "workers still use it"
    for _ in range(30):
        world.cluster.settle()
        await world.step()
        world.now += timedelta(seconds=30)
    assert world.cluster.names("PersistentVolumeClaim") == world.cluster.names("Job") == []
    assert "ModelReady" not in summary(world)


async def test_on_nodes_the_condition_follows_the_sidecars() -> None:
    world = Cached(NODE)
    await world.until_quiet()
    pods = sorted(name for name in world.cluster.pods if name.startswith("demo-"))
    assert len(pods) == 3
    assert world.cluster.names("Job") == world.cluster.names("PersistentVolumeClaim") == []
    world.progress[pods[0]] = Progress(1_000_000_000, 2_000_000_000, 1e8)
    for name in pods[1:]:
        world.cluster.pods[name]["status"]["initContainerStatuses"] = [{"name": "weights", "started": True}]
    await world.step()
    assert world.model() == (
        "False",
        "Downloading",
        "2 of 3 workers have their weights; node-1: 1 GB of 2 GB, 100 MB/s, about 10 s left",
    )
    waiting = {"name": "weights", "started": False, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    said = {"terminated": {"exitCode": 2, "message": "/weights cannot be written; make it writable for user 65532"}}
    world.cluster.pods[pods[0]]["status"]["initContainerStatuses"] = [{**waiting, "lastState": said}]
    await world.step()
    assert world.model()[:2] == ("False", "FetchFailed")
    assert "make it writable for user 65532" in world.model()[2]
    world.cluster.pods[pods[0]]["status"]["initContainerStatuses"] = [{"name": "weights", "started": True}]
    await world.step()
    assert world.model()[:2] == ("True", "WeightsReady")


async def test_an_image_is_mounted_where_the_cluster_can_and_refused_with_a_reason_where_not() -> None:
    world = Cached(OCI)
    world.cluster.image_volumes = REFUSAL
    await world.until_quiet()
    assert world.model() == ("False", "ImageVolumesUnsupported", REFUSAL)
    assert summary(world)["Progressing"] == ("False", "ModelRefused")
    assert world.cluster.names("WorkerGroup") == []
    world.cluster.image_volumes = ""
    await world.until_quiet()
    assert world.model()[:2] == ("True", "ImageVolume")
    template = world.cluster.named("StatefulSet", world.cluster.names("StatefulSet")[0])["spec"]["template"]["spec"]
    volume = next(volume for volume in template["volumes"] if volume["name"] == "model")
    assert volume["image"] == {"reference": "registry.example.com/models/llama:1", "pullPolicy": "IfNotPresent"}


async def test_what_the_api_server_refuses_is_reported() -> None:
    world = Cached(CLAIM)
    world.cluster.fail = lambda action: (
        InvalidError("storage class nfs: forbidden", status=422) if action.key.kind == "PersistentVolumeClaim" else None
    )
    await world.until_quiet()
    assert world.model()[:2] == ("False", "FetchFailed")
    assert "storage class nfs: forbidden" in world.model()[2]


async def test_a_pod_that_waits_for_its_volume_is_reported() -> None:
    world = Cached(CLAIM)
    await world.until_quiet()
    pod = world.start()
    waits = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims"
    world.cluster.pods[pod]["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": waits}]}
    await world.step()
    assert world.model() == ("False", "FetchPending", f"pod {pod} waits for a node: {waits}")


async def test_missing_keys_of_a_bucket_are_reported_before_anything_is_made() -> None:
    world = Cached(S3)
    world.cluster.model_keys_found = False
    await world.until_quiet()
    assert summary(world)["Planned"] == ("False", "SecretNotFound")
    assert (
        "spec.model.source.s3.credentialsSecretRef: there is no Secret s3"
        in world.cluster.condition("Planned")["message"]
    )


async def test_a_service_without_a_cache_has_no_such_condition() -> None:
    world = World(changed(service(), "spec.model.source", {"huggingFace": {}}))
    await world.until_quiet()
    assert "ModelReady" not in summary(world)


async def test_one_token_is_made_for_all_that_a_pass_makes() -> None:
    """Weights, workers and coordinators ask for it one after the other, before any Secret is seen."""
    world = Cached(NODE)
    made: list[bytes] = []

    def new_token() -> bytes:
        made.append(b"%032d" % len(made))
        return made[-1]

    world.reconciler._new_token = new_token
    await world.until_quiet()
    assert len(made) == 1
    (stored,) = [item for key, item in world.cluster.objects.items() if key.kind == "Secret"]
    assert read_token(stored) == made[0]
    hashes = {
        item["spec"]["template"]["metadata"]["annotations"][TOKEN_HASH_ANNOTATION]
        for item in world.cluster.objects.values()
        if item["kind"] in ("StatefulSet", "Deployment")
    }
    assert len(hashes) == 1


async def test_a_token_that_was_lost_is_replaced_by_another_one() -> None:
    world = Cached(NODE)
    await world.until_quiet()
    (key,) = [key for key in world.cluster.objects if key.kind == "Secret"]
    before = world.cluster.objects.pop(key)
    world.new_token = b"fedcba9876543210fedcba9876543210"
    await world.until_quiet()
    assert read_token(world.cluster.objects[key]) == world.new_token != read_token(before)
