"""A service on a real cluster: applied, served, changed, broken in every promised way, and removed."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from weft_e2e import kube
from weft_e2e.checks import (
    check_answers,
    check_history_read,
    check_no_failures,
    check_no_silent_failures,
    check_nothing_left,
    check_pods_untouched,
    check_ready,
    check_session_served,
    check_tokens_computed_once,
    check_unchanged,
)
from weft_e2e.checks.objects import child_specs
from weft_e2e.checks.sessions import FOUR_ROUNDS
from weft_e2e.demo.settings import SYSTEM_NAMESPACE
from weft_e2e.kube import Condition, Object
from weft_e2e.replay.client import Target
from weft_e2e.replay.sessions import PlannedRound
from weft_e2e.scenarios.background import Background, background_sessions
from weft_e2e.scenarios.installed import ANY_USER, Installed
from weft_e2e.scenarios.manifests import changed, small_service
from weft_e2e.service import Service, component_of
from weft_e2e.waiting import until

# A guard against a test that hangs: every wait has a deadline of its own, and they add up to less.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900, func_only=True)]

# Readiness is promised within 45 s on an idle machine; tests share theirs, and a slow one must not fail them.
READY_S = 150.0
# Rounds take a second or two; after a loss, clients wait for what replaces it.
SERVED_S = 90.0


def apply(weft: Installed, namespace: str, manifest: Object) -> Service:
    """Apply a manifest and return its service."""
    weft.kube.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(manifest))
    return Service(weft.kube, namespace, manifest["metadata"]["name"])


def applied(weft: Installed, namespace: str, manifest: Object) -> Service:
    """Apply a manifest and wait until it is Ready."""
    service = apply(weft, namespace, manifest)
    check_ready(service, timeout_s=READY_S)
    return service


def patch(service: Service, manifest: Object, path: str, value: object) -> Object:
    """Apply the manifest with one field changed; return it."""
    new = changed(manifest, path, value)
    service.kube.kubectl("apply", "-n", service.namespace, "-f", "-", input=json.dumps(new))
    return new


@contextmanager
def under_load(
    service: Service,
    *,
    lanes: int = 3,
    round_deadline_s: float = 30.0,
    rounds: tuple[PlannedRound, ...] = Background.BRISK,
) -> Iterator[Background]:
    """Keep sessions going on the service for as long as the block runs."""
    with service.reachable(run=f"{time.time():.0f}-") as target:
        wait_served(target)
        background = Background(target, lanes=lanes, rounds=rounds, round_deadline_s=round_deadline_s)
        with background_sessions(background):
            background.wait_served(lanes, timeout_s=SERVED_S)
            yield background


def wait_served(target: Target) -> None:
    """Serve one round, so that what follows measures the service and not the forwarding to it."""
    asyncio.run(check_session_served(target, session=FOUR_ROUNDS, deadline_s=60))


def answers_are_right(background: Background) -> None:
    """Compare every answer that came with the right one."""
    for transcript in background.transcripts:
        check_answers(transcript)


def becomes(probe: Callable[[], bool], *, what: str, timeout_s: float = 90.0) -> None:
    """Wait until a probe is true."""
    until(probe, what=what, timeout_s=timeout_s)


def system_pods(weft: Installed, component: str) -> dict[str, str]:
    """Return the uids of the Ready pods of a part of Weft itself, and their nodes."""
    pods = kube.items(weft.kube, "pods", namespace=SYSTEM_NAMESPACE, selector=_part(component))
    return {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in pods if kube.pod_ready(pod)}


def kill_system_pod(weft: Installed, component: str) -> None:
    """End the pods of a part of Weft itself without a chance to tidy up."""
    words = ("delete", "pod", "-n", SYSTEM_NAMESPACE, "-l", _part(component))
    weft.kube.kubectl(*words, "--grace-period=0", "--force", "--wait=false")


def _part(component: str) -> str:
    return f"app.kubernetes.io/component={component}"


def runs_as_any_user(pod: Object) -> bool:
    """Return whether all containers of a pod run as a user that no image knows."""
    return {key: pod["spec"]["securityContext"].get(key) for key in ANY_USER} == ANY_USER and not any(
        "runAsUser" in item["securityContext"]
        for item in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
    )


def test_apply_serve_four_rounds_delete(weft: Installed, namespace: str) -> None:
    """Coordinator, sidecars and engines run as a user that OpenShift might assign, as all pods of the chart do."""
    user = {"spec": {"securityContext": ANY_USER}}
    patches = [{"patch": user}, {"component": "coordinator", "patch": user}]
    service = applied(weft, namespace, changed(small_service(), "spec.podTemplates", patches))
    assert all(runs_as_any_user(pod) for pod in service.pods())
    if weft.local is not None:
        system = kube.items(weft.kube, "pods", namespace=SYSTEM_NAMESPACE)
        assert {component_of(pod) for pod in system} >= {"operator", "redis", "prometheus"}
        assert all(runs_as_any_user(pod) for pod in system)
    before = service.metrics_pages()
    assert all("\nweft_router_compiled 1.0\n" in page for name, page in before.items() if not name.endswith("/engine"))
    with service.reachable() as target:
        transcript = asyncio.run(check_session_served(target, deadline_s=60))
    after = service.metrics_pages()

    later = [r for r in transcript.records if r.index and r.route == "remote"]
    assert len(later) == 3, [(r.route, r.reason) for r in transcript.records]
    check_history_read(before, after, remote_later_rounds=len(later))
    check_tokens_computed_once(before, after, transcript.records)

    weft.kube.kubectl("delete", "dis", service.name, "-n", namespace, "--wait=false")
    check_nothing_left(weft.kube, namespace, timeout_s=120)
    assert kube.get(weft.kube, "dis", service.name, namespace=namespace) is None


def test_a_changed_spec_is_rolled_out(weft: Installed, namespace: str) -> None:
    manifest = small_service()
    service = applied(weft, namespace, manifest)
    first = service.worker_uids()

    with under_load(service) as load:
        # One more prefill worker: the others stay as they are.
        manifest = patch(service, manifest, "spec.planning.prefill", {"min": 2, "max": 2})
        check_ready(service, timeout_s=READY_S)
        grown = service.worker_uids()
        assert {n: u for n, u in grown.items() if n in first} == first
        assert len(grown) == len(first) + 1
        # What queues are built with: every router starts anew.
        patch(service, manifest, "spec.routing.prefillConcurrency", 2)
        check_ready(service, timeout_s=READY_S, without=grown.values())
        load.wait_served(6, timeout_s=SERVED_S)

    served, _failed = check_no_silent_failures(load.records)
    assert served
    answers_are_right(load)


def test_a_killed_operator_touches_no_worker_and_reconciles_after(weft: Installed, namespace: str) -> None:
    service = applied(weft, namespace, small_service())
    uids = service.worker_uids()
    before = set(system_pods(weft, "operator"))
    assert before

    with under_load(service) as load:
        kill_system_pod(weft, "operator")
        # What is lost while it is away comes back.
        weft.kube.kubectl("delete", "service", f"{service.name}-worker", "-n", namespace)
        becomes(
            lambda: kube.get(weft.kube, "service", f"{service.name}-worker", namespace=namespace) is not None,
            what="the deleted Service again",
        )
        becomes(lambda: bool(set(system_pods(weft, "operator")) - before), what="a new operator")
        load.wait_served(4, timeout_s=SERVED_S)

    check_ready(service, timeout_s=READY_S)
    check_pods_untouched(service, uids)
    check_no_failures(load.records)
    answers_are_right(load)


def test_a_deleted_worker_pod_comes_back(weft: Installed, namespace: str) -> None:
    service = applied(weft, namespace, small_service(decode=(2, 2)))
    victim = service.pods("decode")[0]["metadata"]

    with under_load(service) as load:
        weft.kube.kubectl("delete", "pod", victim["name"], "-n", namespace, "--grace-period=0", "--force")
        check_ready(service, timeout_s=READY_S, without={victim["uid"]})
        load.wait_served(4, timeout_s=SERVED_S)

    check_no_silent_failures(load.records)
    answers_are_right(load)


def test_a_node_without_power_is_replaced_under_load(weft: Installed, namespace: str) -> None:
    if weft.local is None:
        pytest.skip("only nodes of a local cluster can be powered off")
    becomes(lambda: len(system_pods(weft, "operator")) == 2, what="two operators")
    # One of them stays; the other, the leader perhaps, may go with its node.
    survivor = min(system_pods(weft, "operator").values())
    victim = next(n.name for n in weft.local.nodes() if n.name != survivor)
    # The coordinator's own streams end with it, so it is kept off the node that will lose its power.
    with cordoned(weft, victim):
        manifest = small_service()
        service = applied(weft, namespace, manifest)
    # And what is added now is kept off the other one, because without a decode worker there its loss proves nothing.
    with cordoned(weft, survivor):
        more = {"prefill": {"min": 2, "max": 2}, "decode": {"min": 2, "max": 2}}
        patch(service, manifest, "spec.planning", more)
        check_ready(service, timeout_s=READY_S)
    pods = service.pods()
    placed = {(p["spec"]["nodeName"], component_of(p)) for p in pods}
    roles = {"prefill", "decode"}
    assert placed == {(survivor, "coordinator"), *((node, role) for node in (survivor, victim) for role in roles)}
    lost = {p["metadata"]["uid"] for p in pods if p["spec"]["nodeName"] == victim}

    with under_load(service, lanes=4, round_deadline_s=60) as load:
        weft.local.power_off(victim)
        try:
            check_ready(service, timeout_s=240, without=lost)
            load.wait_served(6, timeout_s=SERVED_S)
        finally:
            weft.local.power_on(victim)

    check_no_silent_failures(load.records)
    answers_are_right(load)


@contextmanager
def cordoned(weft: Installed, node: str) -> Iterator[None]:
    """Keep new pods off a node for as long as the block runs."""
    weft.kube.kubectl("cordon", node)
    try:
        yield
    finally:
        weft.kube.kubectl("uncordon", node)


def test_a_deleted_coordinator_fails_no_request(weft: Installed, namespace: str) -> None:
    service = applied(weft, namespace, changed(small_service(), "spec.coordinator.replicas", 2))
    victim = service.pods("coordinator")[0]["metadata"]["name"]

    with under_load(service) as load:
        weft.kube.kubectl("delete", "pod", victim, "-n", namespace, "--wait=false")
        becomes(
            lambda: (
                [p["metadata"]["name"] != victim and kube.pod_ready(p) for p in service.pods("coordinator")]
                == [True, True]
            ),
            what="two Ready coordinators without the deleted one",
        )
        load.wait_served(4, timeout_s=SERVED_S)

    check_no_failures(load.records)
    answers_are_right(load)


def test_an_invalid_change_is_refused_and_changes_nothing(weft: Installed, namespace: str) -> None:
    manifest = small_service()
    service = applied(weft, namespace, manifest)
    before, uids, generation = child_specs(service), service.worker_uids(), service.object()["metadata"]["generation"]

    for path, value, words in (
        ("spec.slo.itl", "2s", "spec.slo.ttft: must be longer than spec.slo.itl"),
        ("spec.planning.prefill", {"min": 3, "max": 2}, "min is above max"),
        ("spec.model.name", "Qwen/Qwen3-32B", "spec.model.name: cannot change"),
        ("spec.surprise", 1, "unknown field"),
    ):
        bad = json.dumps(changed(manifest, path, value))
        done = weft.kube.kubectl("apply", "-n", namespace, "-f", "-", input=bad, check=False)
        assert done.returncode != 0, path
        assert words in done.stderr, path
    assert service.object()["metadata"]["generation"] == generation

    # What only the planner can see is refused in the status, and the running workers stay.
    patch(service, manifest, "spec.model.maxModelLen", 10_000_000)
    refused = until(lambda: is_refused(service), what="Planned=False", timeout_s=90)
    assert refused.reason == "ContextDoesNotFit"
    assert "10" in refused.message

    check_unchanged(service, before)
    check_pods_untouched(service, uids)
    with service.reachable(run="still-") as target:
        asyncio.run(check_session_served(target, deadline_s=60))


def is_refused(service: Service) -> Condition | None:
    """Return what the status says of a spec that cannot be planned; None while it does not say so."""
    planned = service.conditions().get("Planned")
    return planned if planned is not None and planned.status == "False" else None


def test_sessions_go_on_when_redis_restarts(weft: Installed, namespace: str) -> None:
    service = applied(weft, namespace, small_service())
    before = set(system_pods(weft, "redis"))
    assert before

    with under_load(service, lanes=6, rounds=LONG_PAUSES) as load:
        kill_system_pod(weft, "redis")
        begun = [transcript for transcript in load.transcripts if transcript.records]
        becomes(lambda: bool(set(system_pods(weft, "redis")) - before), what="a new Redis")
        rounds_until_then = {transcript.session: len(transcript.records) for transcript in begun}
        load.wait_served(12, timeout_s=60)

    check_no_failures(load.records)
    answers_are_right(load)
    went_on = [t.session for t in begun if len(t.records) > rounds_until_then[t.session]]
    assert went_on, f"no session had rounds before and after the restart: {rounds_until_then}"


# A session that began before the restart has rounds left for longer than a new Redis may take.
LONG_PAUSES = (PlannedRound(300, 24, 0.0), *(PlannedRound(80, 24, 4.0) for _ in range(30)))
