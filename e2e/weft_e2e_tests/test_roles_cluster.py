"""Roles on a real cluster: another ratio restarts no engine, and workers that have both roles serve."""

import asyncio

import pytest

from weft_e2e.checks import check_history_read, check_no_failures, check_ready, check_session_served
from weft_e2e.checks.sessions import FOUR_ROUNDS
from weft_e2e.kube import items
from weft_e2e.metrics import growth
from weft_e2e.replay.sessions import PlannedSession
from weft_e2e.scenarios.installed import Installed
from weft_e2e.scenarios.manifests import changed, small_service
from weft_e2e.scenarios.role_changes import AT_ONCE_S
from weft_e2e.scenarios.role_switches import containers, set_roles, wait_roles
from weft_e2e.scenarios.role_watch import RoleWatch, watching_roles
from weft_e2e.service import Service
from weft_e2e.waiting import until
from weft_e2e_tests.test_service_cluster import READY_S, SERVED_S, answers_are_right, applied, patch, under_load
from weft_operator.api.objects import ROLE_LABEL, labels_of, name_of

# A guard against a test that hangs: every wait has a deadline of its own, and they add up to less.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]

DRAIN_S = 5.0
"""spec.rollout.drainTimeout of small services."""


def roles_of_sets(service: Service) -> dict[str, str]:
    """Return what ``kubectl get sts -L weft.dev/role`` shows."""
    found = items(service.kube, "statefulsets", namespace=service.namespace, selector=service.selector)
    return {name_of(item): labels_of(item)[ROLE_LABEL] for item in found}


def one_change(seen: RoleWatch, number: int) -> None:
    until(lambda: len(seen.changes) == number, what=f"{number} changes", timeout_s=READY_S, last=lambda: str(seen))


def test_another_ratio_on_all_gpus_changes_roles_and_restarts_nothing(weft: Installed, namespace: str) -> None:
    """There is no GPU for another worker: without switches an old one would have to end first."""
    manifest = small_service("ratio", prefill=(2, 2), decode=(1, 1), gpus=3)
    manifest["spec"]["capacity"]["pools"][0]["degrees"] = [1]
    service = applied(weft, namespace, manifest)
    before = containers(service)
    assert sorted(before) == ["ratio-w1-0-0", "ratio-w1-1-0", "ratio-w1-2-0"]

    with watching_roles(service) as seen, under_load(service) as load:
        ratio = {"prefill": {"min": 1, "max": 1}, "decode": {"min": 2, "max": 2}}
        manifest = patch(service, manifest, "spec.planning", ratio)
        one_change(seen, 1)
        check_ready(service, timeout_s=READY_S)
        load.wait_served(6, timeout_s=SERVED_S)
        ratio = {"prefill": {"min": 2, "max": 2}, "decode": {"min": 1, "max": 1}}
        patch(service, manifest, "spec.planning", ratio)
        one_change(seen, 2)
        check_ready(service, timeout_s=READY_S)
        load.wait_served(6, timeout_s=SERVED_S)

    check_no_failures(load.records)
    answers_are_right(load)
    assert containers(service) == before, "the same pods, containers and counts of restarts"
    to_decode, to_prefill = seen.changes
    assert (to_decode.before, to_decode.after) == ("prefill", "decode")
    assert (to_prefill.before, to_prefill.after) == ("decode", "prefill")
    assert to_decode.seconds <= AT_ONCE_S
    assert to_prefill.seconds <= DRAIN_S + AT_ONCE_S
    assert sorted(roles_of_sets(service).values()) == ["decode", "prefill", "prefill"]


def test_a_symmetric_service_serves_and_any_worker_prefills(weft: Installed, namespace: str) -> None:
    manifest = small_service("symmetric", gpus=2)
    manifest["spec"]["capacity"]["pools"][0]["degrees"] = [1]
    manifest = changed(changed(manifest, "spec.planning.mode", "Off"), "spec.routing.policy", "always-remote")
    manifest["spec"]["routing"]["binding"] = "round-robin"
    service = applied(weft, namespace, manifest)
    before = containers(service)
    with watching_roles(service) as seen:
        set_roles(service, {"both": 2})
        wait_roles(seen, {"both": 2}, timeout_s=READY_S)
    assert set(roles_of_sets(service).values()) == {"both"}

    pages = service.metrics_pages()
    sessions = [PlannedSession(f"session-{number}", 0.0, FOUR_ROUNDS.rounds) for number in range(4)]
    with service.reachable() as target:
        served = [asyncio.run(check_session_served(target, session=one, deadline_s=60)) for one in sessions]
    after = service.metrics_pages()
    records = [record for transcript in served for record in transcript.records]
    workers = {name.removesuffix("-0") for name in before}
    assert {record.worker for record in records} == workers, "both decode"
    later = [record for record in records if record.index]
    assert {record.route for record in later} == {"remote"}, [(record.route, record.reason) for record in records]
    check_history_read(pages, after, remote_later_rounds=len(later))
    for name in before:
        engine = f"{name}/engine"
        grown = growth({name: pages[engine]}, {name: after[engine]})
        assert grown.total("weft_mock_prefilled_tokens_total") > 0, f"{name} prefills for the other's sessions"
    assert containers(service) == before
