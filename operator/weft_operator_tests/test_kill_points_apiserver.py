"""A dozen kills at random in one life of a service; ``make e2e-kill`` kills at every write."""

import os
import random
import signal

import pytest

from weft_e2e.api_proxy import Asked
from weft_operator_tests.api import USERS, RealApi
from weft_operator_tests.cluster import wait_for
from weft_operator_tests.kill_points import (
    NAMESPACE,
    SERVICE,
    Trip,
    ask,
    differences,
    have_namespace,
    points_of,
    reference_trip,
    rest,
    some,
)

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(1200, func_only=True)]

KILLS = 12


def test_an_operator_killed_at_a_dozen_writes_ends_where_it_would_have(api: RealApi) -> None:
    seed = int(os.environ.get("WEFT_KILL_SEED") or random.SystemRandom().randrange(10**6))
    reference = reference_trip(api)
    points = points_of(reference)
    assert len(points) >= 60
    chosen = some(points, KILLS, seed)
    trip = Trip(api, chosen).run()
    again = f"again with WEFT_KILL_SEED={seed}: killed {'; '.join(map(str, trip.killed))}"
    # A write that a kill made needless is not met any more; most are.
    assert len(trip.killed) >= KILLS // 2, again
    assert differences(reference, trip) == [], again


@pytest.mark.parametrize(("write", "operator"), [(2, "lives"), (12, "lives"), (20, "lives"), (16, "is absent")])
def test_a_service_deleted_in_the_middle_of_its_creation_leaves_nothing(
    api: RealApi, write: int, operator: str
) -> None:
    have_namespace(api)
    replica = api.replica("a", NAMESPACE).start()
    met: list[Asked] = []

    def delete_it(asked: Asked) -> bool:
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
