"""A service at zero on a real API server and a real Redis: the operator's own process hears of requests that wait."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from weft_operator.api.objects import Manifest
from weft_operator_tests.api import RealApi, small_service
from weft_operator_tests.cluster import condition, wait_for
from weft_operator_tests.service_keys import key_in
from weft_operator_tests.test_groups_apiserver import pods, the_group, workers
from weft_router.state.redis_store import RedisStore
from weft_router_tests.redis_server import RedisServer

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400, func_only=True)]


@pytest.fixture(autouse=True)
def ended(api: RealApi) -> Iterator[None]:
    """End the operators of each test."""
    yield
    api.heal()


def test_a_service_at_zero_has_no_pods_and_comes_back_when_a_coordinator_says_that_requests_wait(
    api: RealApi, redis_server: RedisServer
) -> None:
    namespace = api.namespace()
    api.replica("a", namespace, WEFT_REDIS_URL=redis_server.url).start()
    planning = {"objective": "cost", "scaleToZero": {"after": "30m"}}
    api.kube.apply(small_service(namespace, planning=planning))
    path = f"apis/weft.dev/v1alpha1/namespaces/{namespace}/disagginferenceservices/demo"

    def ready() -> str:
        return str(condition(api.read(path), "Ready").get("reason", ""))

    def asked() -> Manifest:
        spec = the_group(api, namespace)["spec"]
        return {"replicas": spec["replicas"], "roles": spec["roles"]}

    wait_for("workers", lambda: ready() == "Serving", timeout=120)
    planned = asked()
    # As if nobody had asked anything for half an hour: the record is all that the operator goes by.
    config = f"api/v1/namespaces/{namespace}/configmaps/demo-plan"

    def at_zero() -> bool:
        """Put the service to rest, again where a pass that was under way has written the record meanwhile."""
        if ready() == "ScaledToZero":
            return True
        baseline = json.loads((api.read(config) or {})["data"]["replanning.json"])
        if "asleepAt" not in baseline:
            kept = json.dumps({**baseline, "asleepAt": "2026-01-01T00:00:00Z"})
            patch = json.dumps({"data": {"replanning.json": kept}})
            api.kube.run("-n", namespace, "patch", "configmap", "demo-plan", "--type=merge", "-p", patch)
        return False

    wait_for("zero", at_zero, timeout=150)
    wait_for("no pods", lambda: not workers(api, namespace))
    assert asked()["replicas"] == 0
    wait_for("the coordinator", lambda: bool(pods(api, namespace, "coordinator")))

    key = key_in(api.read(f"api/v1/namespaces/{namespace}/secrets/demo-token"))

    async def want_workers() -> None:
        store = RedisStore(redis_server.url, namespace=namespace, service="demo", key=key)
        await store.demand()
        await store.close()

    asyncio.run(want_workers())
    wait_for("the plan's workers", lambda: asked() == planned)
    wait_for("workers", lambda: ready() == "Serving", timeout=120)
    api.kube.run("-n", namespace, "delete", "dis", "demo")
    wait_for("end of all", lambda: not workers(api, namespace))
