"""Writes ask for leave when their bytes go out, and an API server that wants peace gets it: over real sockets."""

import time
from collections.abc import Iterator

import pytest

from weft_operator.api.objects import Manifest, ObjectKey
from weft_operator.errors import NotLeaderError, TransientError
from weft_operator.kube.leader_election.lease_term import LeaseTerm, steady_clock
from weft_operator_tests.cluster import wait_for
from weft_operator_tests.test_apiserver import CONFIG, ROOT, Scripted

pytestmark = pytest.mark.component

BODY: Manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}}


@pytest.fixture
def server() -> Iterator[Scripted]:
    scripted = Scripted()
    for method in ("GET", "PATCH", "PUT", "DELETE"):
        scripted.on(method, f"{ROOT}/configmaps/a", BODY)
    scripted.on("POST", f"{ROOT}/configmaps", BODY)
    yield scripted
    scripted.close()


def test_who_lost_the_lease_reads_and_writes_nothing(server: Scripted) -> None:
    term = LeaseTerm(steady_clock() + 60)
    api = server.api.fenced(term.check)
    api.apply(BODY)
    term.end()
    for write in (
        lambda: api.apply(BODY),
        lambda: api.create(BODY),
        lambda: api.replace(BODY),
        lambda: api.delete(CONFIG, uid="u"),
        lambda: api.annotate(CONFIG, {"a": "b"}, version="1"),
    ):
        with pytest.raises(NotLeaderError):
            write()
    assert api.get(CONFIG) == BODY
    assert [asked[0] for asked in server.asked] == ["PATCH", "GET"]
    assert api.stats.writes_in_flight == 0


def test_leave_is_asked_for_after_connecting(server: Scripted) -> None:
    asked = []

    def check() -> None:
        asked.append(True)
        wait_for("the connection, which is there before the question", lambda: server.connections == 1, timeout=20)
        raise NotLeaderError("over")

    with pytest.raises(NotLeaderError):
        server.api.fenced(check).apply(BODY)
    assert asked
    assert server.asked == []


def test_two_terms_of_one_process_do_not_lend_each_other_leave(server: Scripted) -> None:
    before, after = LeaseTerm(steady_clock() - 1), LeaseTerm(steady_clock() + 60)
    old, new = server.api.fenced(before.check), server.api.fenced(after.check)
    new.apply(BODY)
    with pytest.raises(NotLeaderError):
        old.apply(BODY)
    assert len(server.asked) == 1


def test_what_comes_after_a_retry_after_is_not_even_asked(server: Scripted) -> None:
    other = ObjectKey("v1", "ConfigMap", "default", "b")
    server.on("GET", f"{ROOT}/configmaps/b", {"message": "later"}, status=429, Retry_After="1")
    begun = time.monotonic()
    with pytest.raises(TransientError):
        server.api.get(other)
    with pytest.raises(TransientError, match="not sent for another") as caught:
        server.api.get(CONFIG)
    assert caught.value.retry_after is not None
    assert 0 < caught.value.retry_after <= 1
    assert len(server.asked) == 1
    while server.api.stats.pause_left_s() > 0:
        assert time.monotonic() < begun + 10
        time.sleep(0.02)
    assert server.api.get(CONFIG) == BODY


def test_half_an_answer_is_no_answer(server: Scripted) -> None:
    server.on("GET", f"{ROOT}/configmaps/a", b'{"half": ')
    with pytest.raises(TransientError, match="not JSON"):
        server.api.get(CONFIG)


def test_names_come_without_bodies(server: Scripted) -> None:
    items = [{"metadata": {"namespace": "default", "name": name}} for name in ("a", "b")]
    server.on("GET", f"{ROOT}/configmaps", {"items": items})
    assert server.api.names("v1", "ConfigMap", namespace="default") == (("default", "a"), ("default", "b"))
