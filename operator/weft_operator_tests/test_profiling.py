"""The operator measures a service's costs: when it begins, what it makes, what it takes over and what it refuses."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_operator.api.objects import MEASURE_ANNOTATION, Manifest, ServiceKey, labels_of
from weft_operator.errors import InvalidError, Right
from weft_operator.kube.diff import Apply
from weft_operator.kube.observe import Observed
from weft_operator.profiling.results import NotUsableError, merged, read
from weft_operator.profiling.targets import identity, targets_of
from weft_operator.profiling.termination_message import MAX_BYTES, MessageError, packed, unpacked
from weft_operator.render.engines.container import ENGINE_PORT
from weft_operator_tests.fake_jobs import told
from weft_operator_tests.samples import KEY, PROFILE_JSON, SETTINGS, group, planned
from weft_operator_tests.valid import changed, service, spec, vllm_service
from weft_operator_tests.world import World, summary

IMAGE = "registry.example.com/weft-operator:1"
ROOM = {"measure": {"extraGpus": 16, "degrees": [4, 8]}, "analytic": {}}


def asking(profile: Mapping[str, Any] = ROOM, base: Callable[[], Manifest] = service) -> Manifest:
    return changed(base(), "spec.profile", dict(profile))


async def running(body: Manifest, *, image: str = IMAGE) -> World:
    world = World(body)
    world.restart(replace(SETTINGS, operator_image=image))
    await world.until_quiet()
    return world


def jobs(world: World, kind: str) -> list[str]:
    return [name for name in world.cluster.names("Job") if f"-{kind}-" in name]


def start(world: World, job: str, ip: str = "10.0.0.9") -> Manifest:
    """Play the Job controller and the kubelet: the pod of a Job runs."""
    made = world.cluster.named("Job", job)
    template = copy.deepcopy(made["spec"]["template"])
    labels = {**template["metadata"]["labels"], "batch.kubernetes.io/job-name": job}
    pod: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job}-x",
            "namespace": "default",
            "uid": f"uid-{job}",
            "labels": labels,
            "ownerReferences": [{"kind": "Job", "name": job, "uid": made["metadata"]["uid"], "controller": True}],
        },
        "spec": template["spec"],
        "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    world.cluster.pods[f"{job}-x"] = pod
    return pod


def end(world: World, job: str, message: str, code: int = 0) -> None:
    """Let the program of a Job's pod end with these words."""
    pod = world.cluster.pods.get(f"{job}-x") or start(world, job)
    ended = {"name": "profile", "state": {"terminated": {"exitCode": code, "message": message}}}
    pod["status"]["containerStatuses"] = [ended]


async def measured(world: World, degree: int, message: str, code: int = 0) -> str:
    """Play one measurement from its reader to its last words; return the Job's name."""
    (reader,) = [name for name in jobs(world, "reads") if f"-reads-{degree}-" in name]
    start(world, reader)
    await world.until_quiet()
    begun = [name for name in jobs(world, "profile") if f"-profile-{degree}-" in name]
    (job,) = [name for name in begun if f"{name}-x" not in world.cluster.pods]
    end(world, job, message, code)
    await world.until_quiet()
    return job


async def test_a_service_that_does_not_ask_is_not_measured() -> None:
    world = await running(service())
    assert "ProfileMeasured" not in summary(world)
    assert world.cluster.names("Job") == []


async def test_every_degree_is_measured_in_turn_and_plans_are_made_with_all_of_them() -> None:
    world = await running(asking())
    assert summary(world)["ProfileMeasured"] == ("Unknown", "Measuring")
    assert summary(world)["Ready"] == ("True", "Serving")
    assert [len(jobs(world, kind)) for kind in ("reads", "profile")] == [1, 0], "the reader has no address yet"
    first = await measured(world, 4, packed({"profile": told(4, alpha=0.44)}))
    assert first.startswith("demo-profile-4-")
    assert world.requests[-1]["profile"] is None, "half of the degrees measured would be no choice between them"
    await measured(world, 8, packed({"profile": told(8, alpha=0.88)}))
    assert summary(world)["ProfileMeasured"] == ("True", "Measured")
    profile = world.cluster.named("CostProfile", "demo-measured-nvidia-h20")
    assert profile["metadata"]["ownerReferences"][0]["uid"] == world.cluster.service["metadata"]["uid"]
    assert [row["prefill"][0]["alpha"] for row in profile["spec"]["degrees"]] == [0.44, 0.88]
    asked: Any = world.requests[-1]["profile"]
    assert asked["degrees"] == profile["spec"]["degrees"]
    ways = {(row["source"], row["destination"], row["link"]): row["alpha"] for row in profile["spec"]["transfers"]}
    assert ways[4, 4, "inter-node"] == ways[8, 8, "inter-node"] == 0.007
    assert (4, 8, "inter-node") in ways, "what nobody timed is as in the profile before"
    assert jobs(world, "reads") == [], "nobody reads from them any more"


async def test_it_goes_on_where_an_operator_was_killed_after_any_write() -> None:
    """A second operator knows nothing: what comes out is the same, and no Job is made twice."""
    world = await running(asking())
    for degree in (4, 8):
        world.restart(replace(SETTINGS, operator_image=IMAGE))
        await world.until_quiet()
        await measured(world, degree, packed({"profile": told(degree)}))
        world.restart(replace(SETTINGS, operator_image=IMAGE))
        await world.until_quiet()
    assert summary(world)["ProfileMeasured"] == ("True", "Measured")
    made = [
        action.key.name for action in world.cluster.actions if action.key.kind == "Job" and isinstance(action, Apply)
    ]
    assert sorted(set(made)) == sorted(made)


async def test_it_waits_for_room_and_says_how_much_is_missing() -> None:
    world = await running(asking({"measure": {}, "analytic": {}}))
    assert summary(world)["ProfileMeasured"] == ("False", "InsufficientCapacity")
    assert "extraGpus to 1" in world.cluster.condition("ProfileMeasured")["message"]
    assert world.cluster.names("Job") == []


async def test_without_room_for_two_engines_transfers_stay_as_they_were() -> None:
    world = await running(asking({"measure": {"extraGpus": 4, "degrees": [4]}, "analytic": {}}))
    (job,) = jobs(world, "profile")
    assert jobs(world, "reads") == []
    words = world.cluster.named("Job", job)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert not any(word.startswith("--decode-url") for word in words)
    end(world, job, packed({"profile": told(4, transfer=None)}))
    await world.until_quiet()
    (way,) = [
        row
        for row in world.cluster.named("CostProfile", "demo-measured-nvidia-h20")["spec"]["transfers"]
        if row["link"] == "inter-node"
    ]
    assert way["alpha"] == next(
        row["alpha"] for row in PROFILE_JSON["transfers"] if (row["source"], row["link"]) == (4, "inter-node")
    )


async def test_a_reader_without_a_node_is_given_up() -> None:
    world = await running(asking())
    (reader,) = jobs(world, "reads")
    world.cluster.named("Job", reader)["metadata"]["creationTimestamp"] = "2025-12-31T23:00:00Z"
    await world.until_quiet()
    assert len(jobs(world, "profile")) == 1
    assert jobs(world, "reads") == []


@pytest.mark.parametrize(
    ("message", "code", "reason", "words"),
    [
        ("the engine at http://127.0.0.1:8000 was not ready in time", 1, "MeasurementFailed", "not ready in time"),
        ("", 137, "MeasurementFailed", "did not measure degree 4"),
        ("garbage", 0, "MeasurementUnusable", "garbage"),
        (packed({"profile": told(4, step=0.9)}), 0, "MeasurementUnusable", "missed by 4% in the median and 90% at P95"),
        (packed({"profile": told(8)}), 0, "MeasurementUnusable", "holds no figures of degree 4"),
    ],
)
async def test_what_cannot_be_used_is_said_and_not_tried_again_at_once(
    message: str, code: int, reason: str, words: str
) -> None:
    world = await running(asking())
    job = await measured(world, 4, message, code)
    assert summary(world)["ProfileMeasured"] == ("False", reason)
    assert words in world.cluster.condition("ProfileMeasured")["message"]
    assert world.cluster.names("CostProfile") == []
    assert jobs(world, "profile") == [job]
    assert [event.reason for event in world.cluster.events].count(reason) == 1


async def test_another_engine_is_measured_again_and_the_old_job_goes() -> None:
    world = await running(asking())
    before = jobs(world, "reads")
    world.cluster.change(engine={"type": "mock", "mock": {"timeScale": 0.5}})
    await world.until_quiet()
    await world.until_quiet()
    assert jobs(world, "reads") != before
    assert len(jobs(world, "reads")) == 1


async def test_a_person_may_ask_for_another_measurement() -> None:
    world = await running(asking({"measure": {"extraGpus": 16, "degrees": [4]}, "analytic": {}}))
    await measured(world, 4, packed({"profile": told(4)}))
    assert summary(world)["ProfileMeasured"] == ("True", "Measured")
    world.cluster.service["metadata"]["annotations"] = {MEASURE_ANNOTATION: "new driver"}
    await world.until_quiet()
    assert summary(world)["ProfileMeasured"] == ("Unknown", "Measuring")
    await measured(world, 4, packed({"profile": told(4, alpha=0.9)}))
    profile = world.cluster.named("CostProfile", "demo-measured-nvidia-h20")
    assert profile["spec"]["degrees"][0]["prefill"][0]["alpha"] == 0.9
    assert summary(world)["ProfileMeasured"] == ("True", "Measured")


async def under_way() -> World:
    """Return a world in which an engine is measured and another one reads from it."""
    world = await running(asking())
    (reader,) = jobs(world, "reads")
    start(world, reader)
    await world.until_quiet()
    (job,) = jobs(world, "profile")
    start(world, job)
    return world


async def test_jobs_end_where_nobody_asks_for_figures_any_more() -> None:
    world = await under_way()
    world.cluster.change(profile={"analytic": {}})
    await world.until_quiet()
    assert world.cluster.names("Job") == []
    assert "ProfileMeasured" not in summary(world)


async def test_an_ended_job_is_left_with_its_log_where_nobody_asks_any_more() -> None:
    world = await running(asking({"measure": {"extraGpus": 4, "degrees": [4]}, "analytic": {}}))
    (job,) = jobs(world, "profile")
    end(world, job, "no engine", 1)
    world.cluster.pods[f"{job}-x"]["status"]["phase"] = "Failed"
    await world.until_quiet()
    world.cluster.change(profile={"analytic": {}})
    await world.until_quiet()
    assert jobs(world, "profile") == [job]


async def test_an_operator_that_may_not_list_jobs_says_so_and_serves_on() -> None:
    world = await running(asking())
    before = world.cluster.names("Job")
    seen = world.cluster.observe

    async def refused(key: ServiceKey) -> Observed | None:
        observed = await seen(key)
        return None if observed is None else replace(observed, jobs_refused=Right("list", "jobs", "batch", "default"))

    world.cluster.observe = refused  # type: ignore[method-assign]
    await world.until_quiet()
    assert summary(world)["ProfileMeasured"] == ("False", "MeasurementFailed")
    words = world.cluster.condition("ProfileMeasured")["message"]
    assert words.startswith("the operator may not list jobs.batch in namespace default; ")
    assert summary(world)["Ready"] == ("True", "Serving")
    assert world.cluster.names("Job") == before


def slow(world: World, since: str, reason: str = "SlowerThanPredicted") -> None:
    """Let the status say since when the service is slower than predicted, or that nothing is known."""
    said = {
        "type": "CostModelFresh",
        "status": "False",
        "reason": reason,
        "message": "9 s",
        "lastTransitionTime": since,
    }
    status = world.cluster.service["status"]
    status["conditions"] = [*(item for item in status["conditions"] if item["type"] != "CostModelFresh"), said]


async def test_a_measurement_goes_on_though_its_cause_comes_and_goes() -> None:
    world = await running(asking({"measure": {"extraGpus": 4, "degrees": [4]}, "analytic": {}}))
    (first,) = jobs(world, "profile")
    end(world, first, packed({"profile": told(4)}))
    await world.until_quiet()
    world.now += timedelta(days=366)
    slow(world, "2027-01-01T00:00:00Z")
    await world.reconciler.reconcile(KEY)
    second = next(name for name in jobs(world, "profile") if name != first)
    start(world, second)
    slow(world, "2027-01-01T00:01:00Z", reason="Unknown")
    await world.reconciler.reconcile(KEY)
    assert second in jobs(world, "profile")
    end(world, second, "no engine", 1)
    slow(world, "2027-01-01T00:02:00Z")
    await world.reconciler.reconcile(KEY)
    assert jobs(world, "profile") == sorted([first, second]), "the hour after a failure holds for any cause"


async def test_what_the_cluster_refuses_of_a_measurement_stalls_no_service() -> None:
    world = World(asking())
    world.restart(replace(SETTINGS, operator_image=IMAGE))
    world.cluster.fail = lambda action: InvalidError("exceeded quota") if action.key.kind == "Job" else None
    await world.until_quiet()
    assert summary(world)["ProfileMeasured"] == ("False", "MeasurementFailed")
    assert "exceeded quota" in world.cluster.condition("ProfileMeasured")["message"]
    assert summary(world)["Progressing"] == ("False", "UpToDate")
    assert world.cluster.condition("Stalled")["status"] == "False"
    outcome = await world.reconciler.reconcile(KEY)
    assert outcome.requeue_after == 60


async def test_a_pool_keeps_its_own_bound() -> None:
    body = asking({"measure": {}, "analytic": {}})
    body["spec"]["capacity"]["gpus"] = 32
    body["spec"]["capacity"]["pools"][0]["gpus"] = 16
    world = World(body)
    world.cluster.gpus = 32
    world.restart(replace(SETTINGS, operator_image=IMAGE))
    await world.until_quiet()
    assert summary(world)["ProfileMeasured"] == ("False", "InsufficientCapacity")
    assert "leaves 0 of 16" in world.cluster.condition("ProfileMeasured")["message"]


@pytest.mark.parametrize(("when", "hours", "readers"), [("Stale", 25, 1), ("Stale", 23, 0), ("Missing", 25, 0)])
async def test_a_profile_that_is_too_fast_is_measured_again_where_that_is_asked_for(
    when: str, hours: int, readers: int
) -> None:
    """Not within a day: a service that is slower now and then for another reason is not measured all the time."""
    profile = {"measure": {"extraGpus": 16, "degrees": [4], "when": when}, "analytic": {}}
    world = await running(asking(profile))
    await measured(world, 4, packed({"profile": told(4)}))
    world.now += timedelta(hours=hours)
    slow(world, "2026-01-01T22:00:00Z")
    await world.reconciler.reconcile(KEY)
    assert len(jobs(world, "reads")) == readers


async def test_a_plan_change_comes_first() -> None:
    world = await under_way()
    world.answer = planned(group("prefill", 2, 4), group("decode", 4, 2))
    world.cluster.change(slo={"ttft": "4s", "itl": "45ms"})
    await world.step()
    await world.step()
    assert summary(world)["Progressing"][0] == "True"
    assert summary(world)["ProfileMeasured"] == ("Unknown", "Waiting")
    assert world.cluster.names("Job") == [], "the engine that reads has GPUs, too"


async def test_a_worker_that_crashes_does_not_end_what_is_measured() -> None:
    world = await under_way()
    before = world.cluster.names("Job")
    world.cluster.break_pod(next(name for name in world.cluster.pods if name.startswith("demo-w4")))
    await world.step()
    assert summary(world)["Progressing"] == ("True", "RollingOut")
    assert summary(world)["ProfileMeasured"] == ("Unknown", "Measuring")
    assert world.cluster.names("Job") == before


async def test_a_measurement_makes_way_for_a_worker_without_a_node() -> None:
    world = await under_way()
    worker = next(name for name in world.cluster.pods if name.startswith("demo-w4"))
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU is free"}
    world.cluster.pods[worker]["status"]["conditions"] = [{"type": "Ready", "status": "False"}, refused]
    await world.step()
    assert summary(world)["ProfileMeasured"] == ("Unknown", "Waiting")
    assert world.cluster.names("Job") == []


async def test_a_worker_that_is_not_ready_holds_up_a_beginning() -> None:
    world = await running(asking())
    (reader,) = jobs(world, "reads")
    world.cluster.break_pod(next(name for name in world.cluster.pods if name.startswith("demo-w4")))
    await world.step()
    start(world, reader)
    await world.step()
    assert summary(world)["ProfileMeasured"] == ("Unknown", "Waiting")
    assert world.cluster.names("Job") == [reader]


async def test_a_service_without_workers_is_measured_though_its_coordinator_is_not_ready() -> None:
    world = await running(service())
    world.cluster.change(planning={"mode": "Off"})
    await world.until_quiet()
    for key in world.cluster.groups():
        asked = world.cluster.named("WorkerGroup", key.name)
        asked["spec"]["replicas"] = 0
        asked["metadata"]["generation"] += 1
    await world.until_quiet()
    world.cluster.named("Deployment", "demo")["status"]["availableReplicas"] = 0
    world.cluster.change(profile=dict(ROOM))
    await world.reconciler.reconcile(KEY)
    assert summary(world)["Progressing"] == ("True", "RollingOut")
    assert summary(world)["ProfileMeasured"] == ("Unknown", "Measuring")


async def test_an_engine_that_no_node_takes_gets_the_room_of_the_one_that_reads() -> None:
    world = await under_way()
    (job,) = jobs(world, "profile")
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU is free"}
    world.cluster.pods[f"{job}-x"]["status"] = {"phase": "Pending", "conditions": [refused]}
    await world.until_quiet()
    assert summary(world)["ProfileMeasured"] == ("Unknown", "Measuring"), "it may be about to find one"
    assert len(jobs(world, "reads")) == 1
    world.cluster.named("Job", job)["metadata"]["creationTimestamp"] = "2025-12-31T23:56:00Z"
    await world.until_quiet()
    assert summary(world)["ProfileMeasured"] == ("False", "InsufficientCapacity")
    assert "its pod waits for a node: no GPU is free" in world.cluster.condition("ProfileMeasured")["message"]
    assert (jobs(world, "profile"), jobs(world, "reads")) == ([job], [])


async def test_blocks_that_differ_are_measured_without_transfers() -> None:
    body = vllm_service()
    body["spec"]["profile"] = dict(ROOM)
    body["spec"]["engine"]["kvTransfer"] = {"bidirectional": False, "blockTokens": {"prefill": 16, "decode": 32}}
    world = await running(body)
    assert jobs(world, "reads") == []
    assert len(jobs(world, "profile")) == 1


async def test_an_operator_without_an_image_of_its_own_says_so() -> None:
    world = await running(asking(), image="")
    assert summary(world)["ProfileMeasured"] == ("False", "MeasurementFailed")
    assert "WEFT_OPERATOR_IMAGE" in world.cluster.condition("ProfileMeasured")["message"]


async def test_degrees_of_no_pool_are_reported() -> None:
    world = await running(asking({"measure": {"degrees": [16]}, "analytic": {}}))
    assert summary(world)["ProfileMeasured"] == ("False", "NothingToMeasure")


async def test_jobs_go_where_nothing_can_be_measured_any_more() -> None:
    world = await running(asking())
    assert world.cluster.names("Job")
    world.cluster.change(profile={"measure": {"degrees": [16]}, "analytic": {}})
    await world.until_quiet()
    assert summary(world)["ProfileMeasured"] == ("False", "NothingToMeasure")
    assert world.cluster.names("Job") == []


async def test_the_jobs_run_the_workers_engine_without_its_router() -> None:
    body = vllm_service()
    body["spec"]["profile"] = dict(ROOM)
    body["spec"]["engine"]["plugin"] = "Expected"
    patch = {"spec": {"containers": [{"name": "engine", "env": [{"name": "MINE", "value": "1"}]}]}}
    body["spec"]["podTemplates"] = [{"component": "prefill", "patch": patch}]
    world = await running(body)
    (reader,) = jobs(world, "reads")
    start(world, reader, ip="fd00::9")
    await world.until_quiet()
    (job,) = jobs(world, "profile")
    made = world.cluster.named("Job", job)
    pod = made["spec"]["template"]["spec"]
    assert made["spec"]["backoffLimit"] == 0
    assert made["spec"]["activeDeadlineSeconds"] == 1800 + 600 + 300
    engine, program = pod["initContainers"][-1], pod["containers"][0]
    assert (engine["name"], engine["restartPolicy"], program["name"]) == ("engine", "Always", "profile")
    assert {"name": "MINE", "value": "1"} in engine["env"]
    assert "--enable-prompt-tokens-details" in engine["args"]
    assert not {"startupProbe", "livenessProbe", "lifecycle"} & engine.keys()
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert not pod["automountServiceAccountToken"]
    assert not {"token", "engine-proof"} & {volume["name"] for volume in pod["volumes"]}
    assert "WEFT_ENGINE_PROOF_FILE" not in {item["name"] for item in engine["env"]}
    assert f"--decode-url=http://[fd00::9]:{ENGINE_PORT}" in program["args"]
    reads = world.cluster.named("Job", reader)["spec"]["template"]["spec"]["containers"][0]
    assert reads["args"][-1] == "--host=$(POD_IP)"
    assert any("kv_consumer" in word for word in reads["args"])
    policy = world.cluster.named("NetworkPolicy", "demo-profile")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels_of(made["spec"]["template"]).items()
    assert [peer["podSelector"]["matchLabels"] for peer in policy["ingress"][0]["from"]] == [
        policy["podSelector"]["matchLabels"]
    ]


# --- the parts


def test_what_does_not_fit_into_a_pods_last_words_is_refused() -> None:
    noise = {str(at): f"{at * 7919 % 104729:x}" * 9 for at in range(900)}
    with pytest.raises(MessageError, match="a pod may say 4096"):
        packed({"profile": noise})
    assert len(packed({"profile": told(4)})) < MAX_BYTES / 2


@given(st.text() | st.binary().map(lambda raw: "weft1:" + raw.hex()) | st.just("weft1:"))
def test_other_words_are_no_measurement(words: str) -> None:
    with pytest.raises(MessageError):
        unpacked(words)


@given(st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=8), max_size=6))
def test_what_is_packed_comes_out_again(body: dict[str, Any]) -> None:
    assert unpacked(packed({"profile": body})) == {"profile": body}


def test_transfers_that_predict_badly_are_those_of_the_profile_before() -> None:
    spec_ = merged(told(4, transfer=0.7), degree=4, known=None, before=PROFILE_JSON)
    (way,) = [row for row in spec_["transfers"] if row["link"] == "inter-node"]
    assert way["alpha"] != 0.007
    assert spec_["provenance"]["transfers4"].startswith("not used: those held out are missed by 70% at P95")
    alone = merged(told(4, transfer=0.7), degree=4, known=None, before={"transfers": []})
    assert alone["provenance"]["transfers4"].startswith("used for want of others: ")
    good = merged(told(4, transfer=0.2), degree=4, known=spec_, before=PROFILE_JSON)
    assert next(row for row in good["transfers"] if row["link"] == "inter-node")["alpha"] == 0.007
    assert good["provenance"] == {
        "source": "engine",
        "degree4": "source: engine",
        "transfers4": "measured; those held out are missed by 4% in the median",
    }


def test_a_measurement_without_errors_is_refused() -> None:
    body = told(4)
    del body["degrees"][0]["fit"]
    with pytest.raises(NotUsableError, match="does not say how well prefills fit"):
        read(packed({"profile": body}), 4)


def test_figures_are_of_one_model_engine_and_gpu() -> None:
    base = spec(asking())
    assert identity(base, "nvidia-h20") == identity(spec(asking({"measure": {}, "analytic": {}})), "nvidia-h20")
    assert identity(base, "nvidia-h20") != identity(base, "nvidia-h100")
    other = spec(changed(asking(), "spec.engine", {"type": "mock", "mock": {"timeScale": 0.5}}))
    assert identity(base, "nvidia-h20") != identity(other, "nvidia-h20")


def test_degrees_on_several_nodes_are_left_out() -> None:
    body = asking({"measure": {}, "analytic": {}})
    body["spec"]["capacity"]["pools"][0] |= {"gpusPerNode": 4, "degrees": [2, 4, 8]}
    assert [target.degree for target in targets_of(spec(body))] == [2, 4]


async def test_engines_that_are_timed_go_where_the_workers_scheduler_puts_them_and_are_near_nobody() -> None:
    """Their pods are none of the workers, so an affinity to these could never be met where none runs."""
    body = asking()
    body["spec"]["scheduling"] = {"gang": {"scheduler": "volcano", "queue": "team-a"}}
    near = {"topology": {"required": "example.com/rack", "scope": "service"}}
    body["spec"]["capacity"]["pools"][0] |= {**near, "affinity": {"nodeAffinity": {}}}
    world = await running(body)
    (reader,) = jobs(world, "reads")
    template = world.cluster.named("Job", reader)["spec"]["template"]
    assert template["spec"]["schedulerName"] == "volcano"
    assert template["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] == "team-a"
    assert template["spec"]["affinity"] == {"nodeAffinity": {}}
