"""A dozen kills at random in one life of a service; ``make e2e-kill`` kills at every write."""

import os
import random
import signal

import pytest

from weft_e2e.api_proxy import ProxiedRequest
from weft_operator_tests.api import USERS, RealApi
from weft_operator_tests.cluster import wait_for
from weft_operator_tests.kill_points import (
    Trip,
    differences,
    have_namespace,
    points_of,
    reference_trip,
    some,
)
from weft_operator_tests.kill_points_life import NAMESPACE, SERVICE, ask, at_rest, rest, roles
from weft_router_tests.redis_server import RedisServer

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(1200, func_only=True)]

KILLS = 12


def test_an_operator_killed_at_a_dozen_writes_ends_where_it_would_have(api: RealApi) -> None:
    seed = int(os.environ.get("WEFT_KILL_SEED") or random.SystemRandom().randrange(10**6))
    reference = reference_trip(api)
    points = points_of(reference)
    assert len(points) >= 60
    chosen = some(points, KILLS, seed)
    trip = Trip(api, chosen, reference=reference).run()
    again = f"again with WEFT_KILL_SEED={seed}: killed {'; '.join(map(str, trip.killed))}"
    # A write that a kill made needless is not met any more; most are.
    assert len(trip.killed) >= KILLS // 2, again
    assert differences(reference, trip) == [], again


def test_an_operator_killed_while_workers_change_their_roles_ends_where_it_would_have(
    api: RealApi, redis_server: RedisServer
) -> None:
    seed = int(os.environ.get("WEFT_KILL_SEED") or random.SystemRandom().randrange(10**6))
    reference = reference_trip(api, roles(), redis_url=redis_server.url, heartbeats=True)
    assert [write for _, write in reference.seen if write.startswith("PATCH pods/")], "labels of pods are written"
    assert not [write for _, write in reference.seen if write.startswith("DELETE pods/")], "no engine restarts"
    points = [point for point in points_of(reference) if point.step in ("prefill more", "decode more")]
    chosen = some(points, KILLS // 2, seed)
    trip = Trip(
        api, chosen, steps=reference.steps, reference=reference, redis_url=redis_server.url, heartbeats=True
    ).run()
    again = f"again with WEFT_KILL_SEED={seed}: killed {'; '.join(map(str, trip.killed))}"
    assert trip.killed, again
    assert differences(reference, trip) == [], again


@pytest.mark.parametrize(("write", "operator"), [(2, "lives"), (12, "lives"), (20, "lives"), (16, "is absent")])
def test_a_service_deleted_in_the_middle_of_its_creation_leaves_nothing(
    api: RealApi, write: int, operator: str
) -> None:
    have_namespace(api)
    replica = api.replica("a", NAMESPACE).start()
    met: list[ProxiedRequest] = []

    def delete_it(asked: ProxiedRequest) -> bool:
        if asked.writes and asked.token == USERS["a"].token:
            met.append(asked)
            if len(met) == write:
                api.send("DELETE", SERVICE)
                if operator == "is absent":
                    replica.send(signal.SIGKILL)
        return True

    api.proxy.after = delete_it
    try:
        ask(api, {})
        wait_for(f"write {write}", lambda: len(met) >= write, timeout=120)
        wait_for("nothing to be left", lambda: not rest(api), timeout=120)
        if operator == "lives":
            assert replica.ready()
    finally:
        api.heal()


def test_a_pass_that_began_before_a_deletion_makes_nothing_again(api: RealApi) -> None:
    """It has read the service, and finds that the Secret is missing: the garbage collector was quicker."""
    have_namespace(api)
    api.replica("a", NAMESPACE).start()
    met: list[ProxiedRequest] = []
    secret = f"api/v1/namespaces/{NAMESPACE}/secrets/demo-token"

    def delete_it(asked: ProxiedRequest) -> bool:
        if asked.token != USERS["a"].token or asked.method != "GET" or len(met) > 1:
            return True
        if asked.path.endswith("/pods") and asked.query.get("labelSelector") == "weft.dev/service=demo":
            met[:] = [asked]  # a pass that looks for itself, and may write
        elif met and asked.path == f"/{secret}":
            met.append(asked)
            api.send("DELETE", SERVICE)
            wait_for("the garbage collector", lambda: api.read(secret) is None, timeout=120)
        return True

    try:
        ask(api, {})
        wait_for("a service at rest", lambda: at_rest(api), timeout=180)
        api.proxy.before = delete_it
        ask(api, {"workload": {"arrivalRate": 1.5}})
        wait_for("the deletion", lambda: len(met) > 1, timeout=120)
        wait_for("nothing to be left", lambda: not rest(api), timeout=120)
        late = [asked for asked in api.proxy.writes(since=met[1].at) if asked.served == 201]
        assert [asked for asked in late if asked.resource != "events"] == []
    finally:
        api.heal()
