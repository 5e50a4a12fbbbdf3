"""Two operators of one Lease on a real API server: one writes, the other goes on, and who lost it writes no more."""

import signal
import time
from collections.abc import Iterator

import pytest

from weft_e2e.api_proxy import Fault, ProxiedRequest, Silence
from weft_operator_tests.api import LEASES, USERS, RealApi, small_service, strangers, writes
from weft_operator_tests.cluster import wait_for
from weft_operator_tests.replicas import Replica, seconds_until

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300, func_only=True)]

LEASE_S = 6.0
"""Less than half of what the chart has; the times of takeovers with that are in docs/high-availability.md."""


@pytest.fixture
def pair(api: RealApi) -> Iterator[tuple[Replica, Replica]]:
    """Give two replicas, of which the first leads and has carried out a service."""
    namespace = api.namespace()
    api.proxy.record.clear()
    a = api.replica("a", namespace, lease_s=LEASE_S).start()
    b = api.replica("b", namespace, lease_s=LEASE_S).start()
    assert (a.leads, b.leads) == (True, False)
    assert b.ready() == "stands by for a\n"
    api.kube.apply(small_service(namespace))
    wait_for("coordinator", lambda: api.kube.get(namespace, "deployment", "demo"))
    yield a, b
    api.heal()


def spoil(api: RealApi, replica: Replica) -> None:
    """Change an object of the service by hand, so that the leader has something to write."""
    image = f"router=example.com/mine:{time.monotonic_ns()}"
    api.kube.run("-n", replica.namespace, "set", "image", "deployment/demo", image)


def mended(api: RealApi, replica: Replica) -> bool:
    found = api.kube.get(replica.namespace, "deployment", "demo")
    assert found is not None
    return str(found["spec"]["template"]["spec"]["containers"][0]["image"]) == "localhost/weft-router:absent"


def test_a_killed_leader_is_followed_by_the_other(api: RealApi, pair: tuple[Replica, Replica]) -> None:
    a, b = pair
    a.kill()
    spoil(api, b)
    took = seconds_until("takeover", lambda: b.leads, timeout=60)
    wait_for("repair by the new leader", lambda: mended(api, b))
    assert took < 30  # what is promised, with a Lease of more than twice this length
    assert writes(api.proxy.record, token=USERS["b"].token)
    assert not strangers(api.proxy.record)
    assert b.metric("weft_operator_leading") == 1
    assert b.metric("weft_operator_terms_total") >= 1


def test_a_leader_that_is_told_to_end_gives_the_lease_back(api: RealApi, pair: tuple[Replica, Replica]) -> None:
    a, b = pair
    assert a.stop() == 0
    # Were it not given back, it would take six seconds from the last renewal.
    took = seconds_until("takeover", lambda: b.leads, timeout=60)
    given = [asked for asked in api.proxy.record if asked.resource == LEASES and asked.content]
    assert any(asked.content["spec"]["holderIdentity"] == "" for asked in given if asked.token == USERS["a"].token)
    assert took < 5
    spoil(api, b)
    wait_for("repair by the new leader", lambda: mended(api, b))
    assert not strangers(api.proxy.record)


def test_a_leader_that_stood_still_in_the_middle_of_a_pass_writes_nothing(
    api: RealApi, pair: tuple[Replica, Replica]
) -> None:
    a, b = pair
    stopped: list[ProxiedRequest] = []

    def stop_it(asked: ProxiedRequest) -> bool:
        # The last read of a pass that has found something to mend.
        read = asked.token == USERS["a"].token and asked.resource == "deployments"
        if not stopped and read and b"example.com/mine" in api.proxy.bodies.get(asked.path, b""):
            a.send(signal.SIGSTOP)
            stopped.append(asked)
        return True

    api.proxy.after = stop_it
    spoil(api, a)
    wait_for("a pass to stop", lambda: bool(stopped))
    wait_for("takeover", lambda: b.leads, timeout=60)
    wait_for("repair by the new leader", lambda: mended(api, b))
    spoil(api, b)
    awake = time.monotonic()
    a.send(signal.SIGCONT)
    wait_for("the end of its term", lambda: a.get("/readyz").startswith("stands by for b"))
    wait_for("second repair", lambda: mended(api, b))
    late = [asked for asked in writes(api.proxy.record, token=USERS["a"].token) if asked.at > awake]
    assert late == []
    assert not strangers(api.proxy.record)
    assert "this replica does not lead any more" in a.log.read_text() or "lease_lost" in a.log.read_text()


def test_only_the_fence_keeps_a_leader_that_stood_still_from_writing(
    api: RealApi, pair: tuple[Replica, Replica]
) -> None:
    """It wakes up with a write ready and cannot reach its Lease, so nothing but the clock tells it that it lost."""
    a, b = pair
    met: list[str] = []

    def stop_it(asked: ProxiedRequest) -> bool:
        if asked.token != USERS["a"].token or "stopped" in met:
            return True
        own = "=demo" in asked.query.get("labelSelector", "")
        if own and asked.resource == "deployments" and b"example.com/mine" in api.proxy.bodies[asked.path]:
            met.append("found")
        if "found" in met and asked.path.endswith("/secrets/demo-token"):  # the last read before it writes
            a.send(signal.SIGSTOP)
            met.append("stopped")
        return True

    def no_lease(asked: ProxiedRequest) -> Fault | None:
        return Silence() if asked.token == USERS["a"].token and asked.resource == LEASES else None

    def by_a(since: float) -> list[ProxiedRequest]:
        return [asked for asked in tuple(api.proxy.record) if asked.token == USERS["a"].token and asked.at > since]

    api.proxy.after = stop_it
    spoil(api, a)
    wait_for("a pass to stop", lambda: "stopped" in met)
    wait_for("takeover", lambda: b.leads, timeout=60)
    wait_for("repair by the new leader", lambda: mended(api, b))
    api.proxy.fault = no_lease
    awake = time.monotonic()
    a.send(signal.SIGCONT)
    refused = "this replica does not lead any more"
    wait_for("its write", lambda: refused in a.log.read_text() or writes(by_a(awake)))
    assert writes(by_a(awake)) == []
    assert not any(asked.status for asked in by_a(awake) if asked.resource == LEASES), "the Lease told it nothing"
    api.proxy.fault = lambda _asked: None
    wait_for("the first to stand by", lambda: a.get("/readyz").startswith("stands by for b"))
    assert writes(by_a(awake)) == []
    assert not strangers(api.proxy.record)


def test_a_leader_cut_off_from_the_api_server_writes_nothing_when_it_is_back(
    api: RealApi, pair: tuple[Replica, Replica]
) -> None:
    a, b = pair

    def cut(asked: ProxiedRequest) -> Fault | None:
        return Silence() if asked.token == USERS["a"].token else None

    api.proxy.fault = cut
    lost = time.monotonic()
    wait_for("takeover", lambda: b.leads, timeout=60)
    spoil(api, b)
    wait_for("repair by the new leader", lambda: mended(api, b))
    api.proxy.fault = lambda _asked: None
    spoil(api, b)
    wait_for("the first to stand by", lambda: a.get("/readyz").startswith("stands by for b"))
    wait_for("second repair", lambda: mended(api, b))
    passed = [asked for asked in writes(api.proxy.record, token=USERS["a"].token) if asked.at > lost and asked.served]
    assert passed == []
    assert not strangers(api.proxy.record)
