"""A right that the operator lacks: who is told, in which words, and that all else goes on."""

import asyncio
from collections.abc import Mapping, Sequence

import kopf
import pytest

from weft_operator.api.objects import Manifest, ServiceKey
from weft_operator.controllers.probes import OperatorMetrics
from weft_operator.controllers.result import ReconcileResult
from weft_operator.errors import ApiError, ForbiddenError, NotFoundError, OperatorError, Right, TransientError
from weft_operator.kube.client import PLURALS
from weft_operator.kube.diff import Action
from weft_operator.kube.leader_election.elector import LeaderElector
from weft_operator.kube.request_stats import MISSING_RIGHT_S, RequestStats
from weft_operator.kube.rights import missing_right, right_for
from weft_operator.kube.startup import await_kinds
from weft_operator.kube.watch_handlers import WATCHED_KINDS, register
from weft_operator.kube.watch_rights import CHECK_INTERVAL_S, try_watches
from weft_operator_tests.test_work_queue import A, B, going, until, wakeups_of
from weft_operator_tests.world import World, serving, summary

POLICIES = "/apis/networking.k8s.io/v1/namespaces/models/networkpolicies"
LIST = Right("list", "networkpolicies", "networking.k8s.io", "models")


def forbidden(right: Right = LIST) -> ForbiddenError:
    return ForbiddenError(f"403 cannot {right.verb} resource", status=403, right=right)


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", POLICIES, "list networkpolicies.networking.k8s.io in namespace models"),
        ("GET", f"{POLICIES}/demo", "get networkpolicies.networking.k8s.io in namespace models"),
        ("POST", "/api/v1/namespaces/models/events", "create events in namespace models"),
        ("PATCH", "/apis/apps/v1/namespaces/models/statefulsets/a", "patch statefulsets.apps in namespace models"),
        ("DELETE", "/api/v1/namespaces/models/pods/a", "delete pods in namespace models"),
        ("GET", "/api/v1/namespaces/models/pods/a/log", "get pods/log in namespace models"),
        (
            "PATCH",
            "/apis/weft.dev/v1alpha1/namespaces/models/disagginferenceservices/demo/status",
            "patch disagginferenceservices.weft.dev/status in namespace models",
        ),
        ("GET", "/api/v1/nodes", "list nodes in all namespaces"),
        ("GET", "/apis/weft.dev/v1alpha1/workergroups", "list workergroups.weft.dev in all namespaces"),
    ],
)
def test_a_request_needs_the_right_that_a_role_would_give(method: str, path: str, words: str) -> None:
    assert str(right_for(method, path)) == words


def test_a_watch_needs_another_right_than_a_listing() -> None:
    words = 'networkpolicies.networking.k8s.io is forbidden: User "a" cannot watch resource "networkpolicies"'
    assert str(missing_right("GET", POLICIES, 403, words, watching=True)).startswith("watch networkpolicies.")


def test_what_quotas_and_admission_refuse_is_no_lack_of_a_right() -> None:
    statefulsets = "/apis/apps/v1/namespaces/models/statefulsets"
    rbac = 'statefulsets.apps is forbidden: User "a" cannot create resource "statefulsets" in API group "apps"'
    assert missing_right("POST", statefulsets, 403, "exceeded quota: gpus, requested: 8, used: 8, limited: 8") is None
    assert missing_right("POST", statefulsets, 403, rbac) == Right("create", "statefulsets", "apps", "models")
    assert missing_right("GET", statefulsets, 401, "Unauthorized") is None
    assert missing_right("GET", "/healthz", 403, "no") is None


async def test_a_kind_that_may_not_be_listed_is_reported_with_verb_resource_namespace_and_remedy() -> None:
    world = await serving()
    running = world.cluster.names("StatefulSet")
    world.cluster.read_error = forbidden()
    world.cluster.change(planning={"seed": 7})
    for _ in range(2):
        with pytest.raises(ForbiddenError):
            await world.step()
    told = world.cluster.condition("Progressing")
    assert (told["status"], told["reason"]) == ("False", "RightMissing")
    assert "may not list networkpolicies.networking.k8s.io in namespace models" in told["message"]
    assert "helm upgrade" in told["message"]
    assert world.cluster.condition("Stalled")["status"] == "True"
    assert world.cluster.service["status"]["observedGeneration"] == 2, "tools read the newest word"
    ready = world.cluster.condition("Ready")
    assert (ready["status"], ready["observedGeneration"]) == ("True", 1), "what runs stays, and was not looked at since"
    assert world.cluster.names("StatefulSet") == running
    assert [(event.type, event.reason) for event in world.cluster.events if event.reason == "RightMissing"] == [
        ("Warning", "RightMissing")
    ]
    writes = world.cluster.status_writes
    with pytest.raises(ForbiddenError):
        await world.step()
    assert world.cluster.status_writes == writes, "the same is not written again"
    world.cluster.read_error = None
    await world.until_quiet()
    assert summary(world)["Progressing"] == ("False", "UpToDate")
    assert world.cluster.condition("Ready")["observedGeneration"] == 2


async def test_a_new_service_says_so_too() -> None:
    world = World()
    world.cluster.read_error = forbidden()
    with pytest.raises(ForbiddenError):
        await world.step()
    assert summary(world)["Progressing"] == ("False", "RightMissing")
    assert summary(world)["Ready"] == ("False", "NotPlanned")
    assert world.cluster.condition("Stalled")["status"] == "True"


async def test_what_cannot_be_told_in_the_service_does_not_hide_the_refusal() -> None:
    world = await serving()
    world.cluster.read_error, world.cluster.events_error = forbidden(), forbidden(Right("create", "events", "", "ns"))
    with pytest.raises(ForbiddenError) as refused:
        await world.step()
    assert refused.value.right == LIST
    assert summary(world)["Progressing"] == ("False", "RightMissing")


async def test_a_write_that_no_role_allows_is_reported_in_the_same_words() -> None:
    world = World()
    lack = Right("patch", "networkpolicies", "networking.k8s.io", "models")

    def refuse(action: Action) -> OperatorError | None:
        return forbidden(lack) if action.key.kind == "NetworkPolicy" else None

    world.cluster.fail = refuse
    for _ in range(4):
        await world.step()
        world.cluster.settle()
    told = world.cluster.condition("Progressing")
    assert told["reason"] == "RightMissing"
    assert "may not patch networkpolicies.networking.k8s.io in namespace models" in told["message"]
    assert summary(world)["Ready"] == ("True", "Serving"), "all else is carried out"


async def test_services_beside_one_that_may_not_be_read_are_reconciled() -> None:
    done: list[ServiceKey] = []

    async def one_pass(key: ServiceKey, _sight: str | None) -> ReconcileResult:
        if key == A:
            raise forbidden()
        done.append(key)
        return ReconcileResult()

    async def observe(_keys: Sequence[ServiceKey]) -> Mapping[ServiceKey, str]:
        raise forbidden()

    async with going(wakeups_of(one_pass, observe=observe)) as work_queue:
        work_queue.enqueue_resync([A, B])
        await until(lambda: B in done)
        assert work_queue.failing == 1


class Lists:
    """Lists objects of a kind in a namespace, or fails as the test will have it."""

    def __init__(self, refusals: Mapping[tuple[str, str], ApiError]) -> None:
        self.refusals = dict(refusals)
        self.asked: list[tuple[str, str]] = []

    def list(self, _api_version: str, kind: str, *, namespace: str = "", limit: int | None = None) -> list[Manifest]:
        assert limit == 1
        self.asked.append((kind, namespace))
        if (kind, namespace) in self.refusals:
            raise self.refusals[kind, namespace]
        return []


SERVICES = "DisaggInferenceService"


async def test_the_start_says_once_which_right_is_missing_and_goes_on_where_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lack = Right("list", "disagginferenceservices", "weft.dev", "b")
    await await_kinds(Lists({(SERVICES, "b"): forbidden(lack)}), ("a", "b"), poll_s=0)
    told = [record for record in caplog.records if record.msg == "right_missing"]
    assert [record.levelname for record in told] == ["ERROR"]
    assert "may not list disagginferenceservices.weft.dev in namespace b" in told[0].__dict__["error"]
    assert "helm upgrade" in told[0].__dict__["fix"]


async def test_the_start_waits_while_nothing_may_be_listed_and_while_kinds_are_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Healing(Lists):
        def list(
            self, _api_version: str, kind: str, *, namespace: str = "", limit: int | None = None
        ) -> list[Manifest]:
            if len(self.asked) > 8:
                self.refusals.clear()
            return super().list(_api_version, kind, namespace=namespace, limit=limit)

    for refusal in (forbidden(), NotFoundError("404", status=404)):
        api = Healing({(SERVICES, ""): refusal})
        await await_kinds(api, (), poll_s=0)
        assert len(api.asked) > 8
    assert [record.msg for record in caplog.records] == ["right_missing", "crds_missing"], "each once"


class Watchable:
    """Begins watches, or fails as the test will have it; the test ends when it has been asked often enough."""

    def __init__(self, refusals: Mapping[tuple[str, str], ApiError]) -> None:
        self.stats = RequestStats(clock=lambda: 0.0)
        self.refusals = dict(refusals)
        self.rounds: list[frozenset[Right]] = []

    def try_watch(self, _api_version: str, kind: str, *, namespace: str = "") -> None:
        error = self.refusals.get((kind, namespace))
        if isinstance(error, ForbiddenError) and error.right is not None:
            self.stats.record_missing(error.right)
        if (kind, namespace) == ("Pod", "b"):
            self.rounds.append(self.stats.missing_rights)
        if error is not None:
            raise error


WATCH = Right("watch", "pods", "", "a")


async def test_a_watch_that_is_refused_is_reported_until_it_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    api = Watchable({("Pod", "a"): forbidden(WATCH)})
    trying = asyncio.create_task(try_watches(api, ("a", "b"), pause_s=0))
    await until(lambda: len(api.rounds) > 2)
    api.refusals["Pod", "a"] = TransientError("503", status=503)
    seen = len(api.rounds)
    await until(lambda: len(api.rounds) > seen + 2)
    assert api.rounds[-1] == {WATCH}, "trouble of another kind takes nothing back"
    del api.refusals["Pod", "a"]
    await until(lambda: api.stats.missing_rights == frozenset())
    trying.cancel()
    told = [record for record in caplog.records if record.msg == "right_missing"]
    assert [record.__dict__["error"] for record in told] == ["the operator may not watch pods in namespace a"]
    assert "helm upgrade" in told[0].__dict__["fix"]
    assert CHECK_INTERVAL_S < MISSING_RIGHT_S, "else the metric would come and go"


def test_all_that_kopf_watches_is_tried() -> None:
    registry = kopf.OperatorRegistry()
    register(registry, on_event=lambda _heard: None)
    watched = {(one.group, one.version, one.any_name) for one in registry._watching.get_all_selectors()}
    tried = {(api.rpartition("/")[0], api.rpartition("/")[2], PLURALS[kind]) for api, kind in WATCHED_KINDS}
    assert watched == tried


async def test_services_tell_once_of_watches_that_are_refused_and_are_served_all_the_same() -> None:
    missing = {Right("watch", "pods", "", ""), Right("watch", "pods", "", "other"), LIST}
    world = World()
    setattr(world.reconciler, "_missing_rights", lambda: missing)  # noqa: B010 - for mypy
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "Serving")
    told = [event for event in world.cluster.events if event.reason == "RightMissing"]
    assert [event.type for event in told] == ["Warning"]
    assert told[0].message.startswith("the operator may not watch pods in all namespaces; apply Weft's chart again")
    assert told[0].message.endswith("until then changes are seen once a minute or later, not at once")


def test_the_metric_names_rights_that_were_missed_a_moment_ago() -> None:
    now = 0.0
    stats = RequestStats(clock=lambda: now)
    stats.record_missing(LIST)
    stats.record_missing(Right("list", "nodes", "", ""))
    stats.ignore_missing(Right("list", "nodes", "", ""))

    class Passes:
        known: frozenset[ServiceKey] = frozenset()
        failing = 0

    elector: LeaderElector | None = None
    metrics = OperatorMetrics(stats=stats, work_queue=Passes(), leading=lambda: True, elector=elector)

    def shown() -> list[Mapping[str, str]]:
        found = next(family for family in metrics.collect() if family.name == "weft_operator_missing_rights")
        return [sample.labels for sample in found.samples]

    assert shown() == [{"verb": "list", "resource": "networkpolicies.networking.k8s.io", "namespace": "models"}]
    now = MISSING_RIGHT_S + 1
    assert shown() == []
