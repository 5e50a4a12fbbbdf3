"""Two operators with Leases of their own watch one namespace on a real API server: one works, the other says so."""

import time

import pytest

from weft_operator_tests.api import USERS, RealApi, small_service, writes
from weft_operator_tests.cluster import wait_for

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(240, func_only=True)]


def test_an_operator_leaves_the_services_of_another_one_alone(api: RealApi) -> None:
    namespace, elsewhere = api.namespace(), api.namespace()
    api.proxy.record.clear()
    first = api.replica("a", namespace, lease_s=15).start()
    api.kube.apply(small_service(namespace))
    wait_for("coordinator", lambda: api.kube.get(namespace, "deployment", "demo"))
    second = api.replica("b", namespace, lease_s=15)
    second.lease = f"{elsewhere}/weft-operator"
    second.start()
    assert first.leads
    assert second.leads, "each leads its own replicas"

    def said() -> list[str]:
        events = api.items("api/v1/events", namespace)
        return [event["message"] for event in events if event["reason"] == "OtherOperator"]

    wait_for("an event", said)
    (message,) = said()
    assert f"operator {namespace}/weft-operator looks after" in message
    assert f"operator {elsewhere}/weft-operator leaves" in message
    wait_for("the metric", lambda: second.metric("weft_operator_contested_namespaces") == 1)
    assert first.metric("weft_operator_contested_namespaces") == 0

    api.kube.run("-n", namespace, "set", "image", "deployment/demo", f"router=example.com/mine:{time.monotonic_ns()}")

    def mended() -> bool:
        found = api.kube.get(namespace, "deployment", "demo")
        assert found is not None
        return str(found["spec"]["template"]["spec"]["containers"][0]["image"]) == "localhost/weft-router:absent"

    wait_for("repair by the first one", mended)
    theirs = writes(api.proxy.record, token=USERS["b"].token)
    assert {asked.resource for asked in theirs} == {"events"}
    assert "namespace_of_another_operator" in second.log.read_text()
    api.heal()
