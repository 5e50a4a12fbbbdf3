"""Least privilege: the operator lives a service's whole life under exactly the chart's role, and uses all of it.

What it asked for is read from the API server's audit log and held against the rules of the rendered chart.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft_operator.api.objects import Manifest
from weft_operator.profiling.termination_message import packed
from weft_operator_tests.api import USERS, RealApi, real_api, small_service
from weft_operator_tests.chart_roles import ChartRoles
from weft_operator_tests.cluster import condition, wait_for
from weft_operator_tests.fake_jobs import JOBS, job_of, play_pod, say, told
from weft_operator_tests.fake_sidecars import fake_sidecars
from weft_operator_tests.operator_with_plans import LONG_PROMPT
from weft_operator_tests.programs import program
from weft_operator_tests.replicas import Replica
from weft_operator_tests.rights import granted, refused, used
from weft_operator_tests.test_gang_apiserver import definition
from weft_operator_tests.test_groups_apiserver import FIXED_ROLES
from weft_operator_tests.valid import PROFILE
from weft_router_tests.redis_server import RedisServer

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(900, func_only=True)]

SYSTEM, MODELS = "weft-system", "models"
PATIENCE_S = 240.0
GROUPS = "apis/weft.dev/v1alpha1/workergroups"
OTHER_PROJECTS = (
    definition("HTTPRoute", "gateway.networking.k8s.io", "v1"),
    definition("InferencePool", "inference.networking.k8s.io", "v1"),
    definition("PeerAuthentication", "security.istio.io", "v1"),
)


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[tuple[RealApi, ChartRoles]]:
    """Give an API server whose operators have the chart's roles and no other, and these; their requests are kept."""
    program("helm")
    values = ("operator.gatewayApi=true", "operator.peerAuthentications=true")
    with real_api(tmp_path, audit=True, values=values) as api:
        for name in (SYSTEM, MODELS):
            api.kube.run("create", "namespace", name)
        api.allow(SYSTEM)
        try:
            yield api, api.roles
        finally:
            api.heal()


def replica(api: RealApi, name: str, redis_url: str) -> Replica:
    """Start an operator of this name as the chart does: over all namespaces, with its Lease beside it."""
    found = Replica(
        name=name,
        kubeconfig=api.bare.kubeconfig(USERS[name].token, server=api.proxy.url),
        namespace="",
        folder=api.folder,
        lease=f"{SYSTEM}/weft-operator",
        env={
            "WEFT_OPERATOR_LEASE_SECONDS": "5",
            "WEFT_OPERATOR_IMAGE": "localhost/weft-operator:none",
            "WEFT_REDIS_URL": redis_url,
        },
    )
    api.replicas.append(found)
    return found.start()


class Life:
    """A service, and what is done to it."""

    def __init__(self, api: RealApi, name: str, **spec: Any) -> None:
        self.api = api
        self.path = f"apis/weft.dev/v1alpha1/namespaces/{MODELS}/disagginferenceservices/{name}"
        self.body = small_service(MODELS, name, **spec)

    def change(self, what: str, **spec: Any) -> None:
        """Apply it with parts of its spec changed, and wait until that is carried out."""
        self.body["spec"] |= spec
        self.api.kube.apply(self.body)
        self.settles(what)

    def settles(self, what: str) -> None:
        """Wait until the newest spec is carried out."""

        def settled() -> bool:
            found = self.api.read(self.path)
            assert found is not None
            status = found.get("status") or {}
            newest = status.get("observedGeneration") == found["metadata"]["generation"]
            return (
                newest
                and condition(found, "Progressing").get("reason") == "UpToDate"
                and self.workers() == self.planned(found)
            )

        wait_for(what, settled, timeout=PATIENCE_S)

    def planned(self, found: Manifest) -> dict[tuple[str, int], int]:
        groups = found["status"]["plan"]["groups"]
        return {(group["role"], group["degree"]): group["replicas"] for group in groups}

    def workers(self) -> dict[tuple[str, int], int]:
        """Return the workers asked for by role and degree, those of groups that are being emptied included."""
        name = self.body["metadata"]["name"]
        found: Counter[tuple[str, int]] = Counter()
        for spec in (item["spec"] for item in self.api.items(GROUPS, MODELS)):
            if spec["service"] != name:
                continue
            replicas = spec.get("replicas") or 0
            for role, count in ({spec["role"]: replicas} if "role" in spec else spec.get("roles") or {}).items():
                if count or not replicas:
                    found[role, spec["degree"]] += count
        return dict(found)


def live(api: RealApi, redis_url: str) -> None:
    """Have a service made, replanned, its roles changed, drained, taken back and opened up, and all removed.

    Another leader follows in between.
    """
    api.kube.apply({**PROFILE, "metadata": {"name": "measured", "namespace": MODELS}})
    a = replica(api, "a", redis_url)
    replica(api, "b", redis_url)
    demo = Life(api, "demo", profile={"ref": {"name": "measured"}}, planning={"revisionHistoryLimit": 2})
    workload = demo.body["spec"]["workload"]
    demo.change("a service")
    with fake_sidecars(api, MODELS, "demo", redis_url):
        more = {**workload, "arrivalRate": 2}
        demo.change("more workers", workload=more)
        demo.change("another ratio", workload={**more, "firstPrompt": {"mean": 2 * LONG_PROMPT}})
        demo.change("the ratio before", workload=more)
    pool = demo.body["spec"]["capacity"]["pools"][0]
    demo.change("another degree", capacity={**demo.body["spec"]["capacity"], "pools": [{**pool, "degrees": [1, 2]}]})
    demo.change("fewer workers", workload={**workload, "arrivalRate": 0.6})
    number = max(item["revision"] for item in api.items("apis/apps/v1/controllerrevisions", MODELS) if _is_plan(item))
    before = demo.workers()
    api.kube.run("-n", MODELS, "annotate", "dis", "demo", f"weft.dev/rollback-to={number - 1}")
    wait_for("the plan before", lambda: demo.workers() != before, timeout=PATIENCE_S)
    demo.settles("the plan before, carried out")
    api.kube.run("-n", MODELS, "annotate", "dis", "demo", "weft.dev/rollback-to-")
    demo.change(
        "other settings of routers",
        networkPolicy={"enabled": False},
        model={**demo.body["spec"]["model"], "maxModelLen": 16384},
    )
    span(api)
    route(api)
    measure(api)
    cache(api)
    a.kill()
    follower = api.replicas[-1]
    wait_for("another leader", lambda: follower.leads, timeout=PATIENCE_S)
    demo.change("a change by the other leader", networkPolicy={"enabled": True})
    demo.change("fixed roles, whose workers have other Services", podTemplates=FIXED_ROLES)
    api.kube.run("-n", MODELS, "delete", "dis", "--all")
    wait_for("the end of all", lambda: not api.items(GROUPS, MODELS), timeout=PATIENCE_S)


def measure(api: RealApi) -> None:
    """Have a service's costs measured: the engine that reads, the one that is timed, and what they say."""
    life = Life(api, "priced", profile={"analytic": {}, "measure": {"extraGpus": 8}})
    pool = life.body["spec"]["capacity"]["pools"][0]
    life.body["spec"]["capacity"] = {**life.body["spec"]["capacity"], "pools": [{**pool, "degrees": [4]}]}
    api.kube.apply(life.body)
    play_pod(api, job_of(api, MODELS, "priced-reads-", timeout=PATIENCE_S), ip="10.0.0.9")
    pod = play_pod(api, job_of(api, MODELS, "priced-profile-", timeout=PATIENCE_S))
    say(api, pod, packed({"profile": told(4)}))
    wait_for(
        "the end of the engine that read",
        lambda: not [job for job in api.items(JOBS, MODELS) if "-reads-" in job["metadata"]["name"]],
        timeout=PATIENCE_S,
    )


def cache(api: RealApi) -> None:
    """Have a service's weights cached, and then not any more: no Job needs to run for that."""
    source = {"huggingFace": {"cache": {"claim": {"size": "1Gi"}}}}
    life = Life(api, "cached")
    life.body["spec"]["model"] = {**life.body["spec"]["model"], "source": source}
    api.kube.apply(life.body)
    job_of(api, MODELS, "cached-weights-", timeout=PATIENCE_S)
    claims = "api/v1/persistentvolumeclaims"
    assert [item["metadata"]["name"] for item in api.items(claims, MODELS)] == ["cached-weights"]
    life.change("no cache any more", model={**life.body["spec"]["model"], "source": {"huggingFace": {}}})
    wait_for(
        "the end of the claim",
        lambda: all(item["metadata"].get("deletionTimestamp") for item in api.items(claims, MODELS)),
        timeout=PATIENCE_S,
    )


def route(api: RealApi) -> None:
    """Have a service reached by endpoint pickers behind a gateway, and in a mesh, and then not any more."""
    for item in OTHER_PROJECTS:
        api.kube.apply(item)
    routed = Life(api, "routed")
    picked = {"parentRefs": [{"name": "public"}], "mode": "endpointPicker"}
    routed.change("endpoint pickers behind a gateway", gateway=picked)
    deployments = "apis/apps/v1/deployments"

    def made() -> set[str]:
        return {item["metadata"]["name"] for item in api.items(deployments, MODELS)}

    assert "routed-picker" in made()
    del routed.body["spec"]["gateway"]
    strict = {"mesh": {"type": "istio", "mtls": "Strict"}}
    routed.change("a mesh, and no gateway any more", network=strict)
    wait_for("the end of the pickers", lambda: "routed-picker" not in made(), timeout=PATIENCE_S)
    rules = "apis/security.istio.io/v1/peerauthentications"
    assert [item["metadata"]["name"] for item in api.items(rules, MODELS)] == ["routed"]
    del routed.body["spec"]["network"]
    routed.change("no mesh any more")
    wait_for("the end of the rule", lambda: not api.items(rules, MODELS), timeout=PATIENCE_S)


def span(api: RealApi) -> None:
    """Have a worker on two nodes restarted as a whole, because one of its pods is asked to go."""
    wide = Life(api, "wide")
    pool = wide.body["spec"]["capacity"]["pools"][0]
    pools = [{**pool, "gpusPerNode": 2, "degrees": [4]}]
    # Where no autoscaler adds nodes, the GPUs of those that are there are counted.
    wide.change("workers on two nodes", capacity={"gpus": 16, "pools": pools})
    api.kube.run("-n", MODELS, "delete", "pod", "wide-w4-0-1", "--wait=false")

    def told() -> bool:
        events = api.items("api/v1/events", MODELS)
        return any(event["reason"] == "WorkerRestarted" for event in events)

    wait_for("a restart of both nodes", told, timeout=PATIENCE_S)


def _is_plan(revision: Manifest) -> bool:
    labels: dict[str, str] = revision["metadata"]["labels"]
    return labels.get("weft.dev/service") == "demo" and labels.get("app.kubernetes.io/component") == "plan"


def test_the_operator_needs_all_that_the_chart_grants_and_nothing_else(
    limited: tuple[RealApi, ChartRoles], redis_server: RedisServer
) -> None:
    api, roles = limited
    live(api, redis_server.url)
    log = api.bare.audit_log.read_text()
    assert refused(log) == ()
    may, does = granted(roles.roles), used(log)
    assert sorted(map(str, does - may)) == []
    assert sorted(map(str, may - does)) == [], "take out of the chart what nobody needs"
