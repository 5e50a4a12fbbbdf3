"""A canary of a new plan and a service at zero, on a real cluster: `make e2e-replan` plays them."""

import json
import os
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import click
import pytest

from weft_e2e import kube
from weft_e2e.checks import check_condition, check_no_failures, check_ready
from weft_e2e.checks.sessions import expected_reply
from weft_e2e.metrics import parse
from weft_e2e.scenarios.arriving import Arrivals, arriving
from weft_e2e.scenarios.installed import Installed
from weft_e2e.scenarios.manifests import small_service
from weft_e2e.scenarios.resting import AFTER_S, HOLD_S, ask, models, resting_service
from weft_e2e.scenarios.trying import STEADY, decode_pods, slow_down, tried_service
from weft_e2e.service import Service, condition_words
from weft_e2e.waiting import until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_REPLAN"), reason="takes minutes: make e2e-replan"),
]

READY_S = 150.0
PLANNED_S = 90.0
"""From another spec to ready workers for its trial: the planner computes for some seconds, and pods start."""
JUDGED_S = 240.0
"""From there to a verdict and to workers of one plan alone, where few rounds are seen at first."""
WORDS, TOKENS = "Tell me what you did while nobody asked.", 8
SLACK_S = 30.0
"""What a busy machine may add to a time that the coordinator keeps."""
HELD = "weft_router_held"


@dataclass(frozen=True, slots=True)
class Resting:
    """A service that nobody asks anything since a moment."""

    service: Service
    asked_at: datetime


@pytest.fixture(scope="module")
def resting(weft: Installed) -> Iterator[Resting]:
    """Give a service that was asked once; the other tests of this module are the time that it has to get idle."""
    namespace = f"e2e-rest-{secrets.token_hex(2)}"
    weft.kube.kubectl("create", "namespace", namespace)
    try:
        service = applied(weft, namespace, resting_service())
        with service.reachable() as target:
            assert ask(target, WORDS, tokens=TOKENS).status == 200
        yield Resting(service, datetime.now(UTC))
    finally:
        weft.kube.kubectl("delete", "namespace", namespace, "--wait=false")


def applied(weft: Installed, namespace: str, manifest: kube.Object) -> Service:
    weft.kube.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(manifest))
    service = Service(weft.kube, namespace, manifest["metadata"]["name"])
    check_ready(service, timeout_s=READY_S)
    return service


@pytest.mark.usefixtures("resting")
def test_a_good_plan_is_promoted_and_one_whose_engines_are_three_times_too_slow_is_undone(
    weft: Installed, namespace: str
) -> None:
    service = applied(weft, namespace, tried_service())
    assert degrees(service) == {"1"}

    with (
        service.reachable(run=f"{time.time():.0f}-") as target,
        arriving(Arrivals(target)) as arrivals,
    ):
        arrivals.turn_to(STEADY)
        arrivals.wait_served(6, timeout_s=60)
        begun = time.monotonic()

        aim(service, "latency")
        tried_beside_each_other(service)
        check_ready(service, timeout_s=JUDGED_S)
        assert degrees(service) == {"2"}, "the good plan is carried out to its end"
        assert service.conditions()["Planned"].reason != "RolledBack"
        click.echo(
            f"{time.monotonic() - begun:6.1f} s  the good plan was promoted; {arrivals.served()} rounds were served"
        )

        kept = set(decode_pods(service))
        aim(service, "cost")
        slow_down(service, degree=1, factor=3.0, within_s=PLANNED_S)
        tried_beside_each_other(service)
        check_condition(service, "Planned", "True", {"RolledBack"}, timeout_s=JUDGED_S)
        check_ready(service, timeout_s=60)
        assert set(decode_pods(service)) == kept, "the workers of the plan before were there all the time"
        said = service.conditions()["Planned"].message
        assert "failed its canary" in said, said
        click.echo(f"{time.monotonic() - begun:6.1f} s  the bad plan was undone: {said}")
        arrivals.wait_served(6, timeout_s=60)
    check_no_failures(arrivals.records)
    click.echo(f"{len(arrivals.records)} rounds, none failed")


@pytest.mark.usefixtures("resting")
def test_while_a_service_has_no_workers_its_fallback_serves(weft: Installed, namespace: str) -> None:
    """The nodes are closed, so that lost workers do not come back at once."""
    manifest = small_service("larger")
    manifest["spec"].setdefault("routing", {})["qos"] = {"fallbackService": "smaller"}
    applied(weft, namespace, small_service("smaller"))
    larger = applied(weft, namespace, manifest)
    with larger.reachable() as target:

        def passed_on() -> bool:
            """Ask; workers that leave may still serve, but no request fails."""
            reply = ask(target, WORDS, tokens=TOKENS)
            assert (reply.status, reply.text) == (200, own.text), reply
            return reply.fallback == "smaller"

        own = ask(target, WORDS, tokens=TOKENS)
        assert (own.status, own.fallback) == (200, "")
        with no_room(weft):
            weft.kube.kubectl("delete", "pod", "-n", namespace, "--wait=false", *workers(larger))
            deleted_at = time.monotonic()
            until(passed_on, what="an answer of the other service", timeout_s=60, every_s=0.5)
            click.echo(
                f"served by the fallback service {time.monotonic() - deleted_at:.1f} s after the workers were deleted"
            )
        check_ready(larger, timeout_s=READY_S)
        until(lambda: ask(target, WORDS, tokens=TOKENS).fallback == "", what="an answer of its own", timeout_s=30)


def test_idle_workers_leave_and_a_held_request_brings_them_back(weft: Installed, resting: Resting) -> None:
    service = resting.service
    model = service.object()["spec"]["model"]["name"]
    begun = time.monotonic()
    check_condition(service, "Ready", "True", {"ScaledToZero"}, timeout_s=2 * AFTER_S + 60)
    until(lambda: not workers(service), what="no worker pods", timeout_s=60, last=lambda: str(list(workers(service))))
    assert [kube.pod_ready(pod) for pod in service.pods("coordinator")] == [True]
    idle_s = (asleep_at(service) - resting.asked_at).total_seconds()
    assert idle_s >= AFTER_S - 5, "no earlier than it may"

    with service.reachable() as target, ThreadPoolExecutor(1) as client:
        assert models(target) == [model]
        click.echo(f"{time.monotonic() - begun:6.1f} s  no workers after {idle_s:.0f} idle seconds; {model} is listed")
        with no_room(weft):
            refused = ask(target, WORDS, tokens=TOKENS)
            assert refused.status == 503, refused
            assert refused.retry_after_s, refused
            assert HOLD_S - 1 <= refused.seconds <= HOLD_S + SLACK_S, refused
            assert workers(service), "they were asked for all the same"
            assert not any(map(kube.pod_ready, workers(service).values())), "there is no room for them"
            click.echo(f"{time.monotonic() - begun:6.1f} s  503 after {refused.seconds:.1f} s: {refused.text}")

            held = client.submit(ask, target, WORDS, tokens=TOKENS)
            until(lambda: waiting(service) == 1, what="a request that is held", timeout_s=HOLD_S)
            assert not any(map(kube.pod_ready, workers(service).values()))
        reply = held.result(timeout=HOLD_S + 90)
        click.echo(f"{time.monotonic() - begun:6.1f} s  {reply.status} after {reply.seconds:.1f} s")
        assert reply.status == 200, reply
        assert reply.text == expected_reply([{"role": "user", "content": WORDS}], TOKENS)
        check_ready(service, timeout_s=90)


def aim(service: Service, objective: str) -> None:
    patch = json.dumps({"spec": {"planning": {"objective": objective}}})
    service.kube.kubectl("patch", "dis", service.name, "-n", service.namespace, "--type=merge", "-p", patch)


def degrees(service: Service) -> set[str]:
    return {degree for _, degree, _ in decode_pods(service).values()}


def tried_beside_each_other(service: Service) -> None:
    """Wait until half of the new sessions go to the new plan, while both plans have a ready decode worker."""

    def tried() -> bool:
        ready = {degree for _, degree, ready in decode_pods(service).values() if ready}
        now = service.conditions().get("Progressing")
        share = service.object()["status"].get("canary", {}).get("percent")
        return ready == {"1", "2"} and now is not None and now.reason == "CanaryRunning" and share == 50

    until(
        tried,
        what="ready decode workers of both plans",
        timeout_s=PLANNED_S,
        last=lambda: f"{decode_pods(service)} {condition_words(service.object())}",
    )


def asleep_at(service: Service) -> datetime:
    """Return since when the operator wants no workers."""
    kept = kube.get(service.kube, "configmap", f"{service.name}-plan", namespace=service.namespace)
    assert kept is not None
    return datetime.fromisoformat(json.loads(kept["data"]["replanning.json"])["asleepAt"])


def workers(service: Service) -> dict[str, kube.Object]:
    """Return the worker pods, leaving ones included."""
    return {pod["metadata"]["name"]: pod for role in ("prefill", "decode") for pod in service.pods(role)}


def waiting(service: Service) -> float:
    """Return how many requests the coordinators hold now."""
    pages = service.metrics_pages()
    found = [value for page in pages.values() for (name, _), value in parse(page).samples.items() if name == HELD]
    return sum(found)


@contextmanager
def no_room(weft: Installed) -> Iterator[None]:
    """Keep new pods off all nodes of a local cluster for as long as the block runs."""
    if weft.local is None:
        pytest.skip("nodes are closed on a local cluster only")
    names = [node.name for node in weft.local.nodes()]
    weft.kube.kubectl("cordon", *names)
    try:
        yield
    finally:
        weft.kube.kubectl("uncordon", *names)
