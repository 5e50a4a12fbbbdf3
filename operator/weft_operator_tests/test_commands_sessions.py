"""``weft sessions --each``: the sessions of all workers in one table, sorted and bounded."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from weft_operator.api.objects import ObjectKey
from weft_operator.commands.sessions import sessions
from weft_operator.errors import ForbiddenError
from weft_operator.kube import exec as exec_module
from weft_operator_tests.served import Served, call, pod, serving
from weft_router.sessions.session_view import MOST, ORDERS

pytestmark = pytest.mark.component

TABLE = """\
session  worker  KV at  class  KV tokens  rounds  KV is in  handle ends in  last round ago
bbbbbbbbbbbbbbbb  demo-d1-1  demo-d1-1  batch  90000  2  GPU 64000, CPU 25984, nowhere 16  -  27 min
aaaaaaaaaaaaaaaa  demo-d1-0  demo-d1-0  default  4096  7  gpu  41 s  3 s
cccccccccccccccc  demo-d1-1  demo-d1-9  default  16  1  gpu  3 min  2.5 h

3 of 3 sessions
"""


def row(key: str, worker: str, tokens: int, rounds: int, handle_s: float | None, idle_s: float, **more: Any) -> Any:
    return {
        "session": key * 64,
        "worker": worker,
        "kvWorker": worker,
        "class": "default",
        "tokens": tokens,
        "rounds": rounds,
        "tier": None if handle_s is None else "gpu",
        "handleSeconds": handle_s,
        "idleSeconds": idle_s,
        **more,
    }


KV = {"gpu": 64_000, "cpu": 25_984, "disk": 0, "remote": 0, "none": 16}
"""Routers whose engines send no KV events say nothing of this."""
ROWS = {
    "demo-d1-0-0": [row("a", "demo-d1-0", 4096, 7, 41.2, 3.0)],
    "demo-d1-1-0": [
        row("b", "demo-d1-1", 90_000, 2, None, 1600.0, kv=KV, **{"class": "batch"}),
        row("c", "demo-d1-1", 16, 1, 190.0, 9000.0, kvWorker="demo-d1-9"),
    ],
}


class Routers:
    """What the routers answer by pod; keeps what they are asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, tuple[str, ...]]] = []
        self.answer: Callable[[str], str] = lambda name: json.dumps({"total": len(ROWS[name]), "sessions": ROWS[name]})

    def __call__(self, _api: object, pod_: ObjectKey, container: str, command: Sequence[str]) -> str:
        self.asked.append((pod_.name, container, tuple(command)))
        return self.answer(pod_.name)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with serving(monkeypatch) as served:
        yield served


@pytest.fixture
def routers(monkeypatch: pytest.MonkeyPatch) -> Routers:
    found = Routers()
    monkeypatch.setattr(exec_module, "output_of", found)
    return found


def body(*words: str) -> Any:
    return json.loads(call(sessions, "demo", "--each", *words, "-o", "json").output)


@pytest.mark.usefixtures("server")
def test_the_table_has_the_sessions_of_all_decode_workers(routers: Routers) -> None:
    shown = call(sessions, "demo", "--each").output
    assert [line.split() for line in shown.splitlines()] == [line.split() for line in TABLE.splitlines()]
    assert sorted(name for name, _, _ in routers.asked) == ["demo-d1-0-0", "demo-d1-1-0"], "no prefill worker is asked"
    assert {container for _, container, _ in routers.asked} == {"router"}


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(("sort", "order"), [("tokens", "bac"), ("idle", "cba"), ("rounds", "abc"), ("handle", "acb")])
def test_rows_are_sorted_and_bounded(routers: Routers, sort: str, order: str) -> None:
    found = body("--sort", sort, "--limit", "2", "--session", "")
    assert [one["session"][0] for one in found["sessions"]] == list(order[:2])
    assert (found["total"], found["unread"]) == (3, {})
    (query,) = {urlsplit(command[-1]).query for _, _, command in routers.asked}
    assert parse_qs(query) == {"n": ["2"], "sort": [sort]}, "each router sorts and bounds its own"


@pytest.mark.usefixtures("server")
def test_a_session_is_found_by_its_hash(routers: Routers) -> None:
    body("--session", "abc")
    assert all(parse_qs(urlsplit(command[-1]).query)["session"] == ["abc"] for _, _, command in routers.asked)


@pytest.mark.usefixtures("server")
def test_pods_that_cannot_be_read_are_named_with_the_right_that_is_missing(routers: Routers) -> None:
    def answer(name: str) -> str:
        if name == "demo-d1-0-0":
            raise ForbiddenError("POST pods/exec: 403", status=403)
        return json.dumps({"total": 2, "sessions": ROWS[name]})

    routers.answer = answer
    result = call(sessions, "demo", "--each")
    assert "demo-d1-0-0: POST pods/exec: 403" in result.output
    assert "needs the right to create pods/exec" in result.output
    assert "2 of 2 sessions" in result.output
    assert body()["unread"] == {"demo-d1-0-0": "POST pods/exec: 403"}


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("said", "words"),
    [("<html>", "the answer is not JSON"), ('{"error": {}}', "an older version")],
)
def test_answers_that_are_no_page(routers: Routers, said: str, words: str) -> None:
    routers.answer = lambda _: said
    result = call(sessions, "demo", "--each")
    assert words in result.output
    assert result.return_value == 1


def test_routers_in_a_mesh_are_asked_at_their_own_port(server: Served, routers: Routers) -> None:
    item = pod("demo-d1-0-0", "decode", worker="demo-d1-0")
    ports = [{"name": "http", "containerPort": 8080}, {"name": "http-mesh", "containerPort": 8081}]
    item["spec"]["initContainers"] = [{"name": "router", "ports": ports}]
    server.pods = [item]
    server.publish()
    body()
    ((_, _, command),) = routers.asked
    assert command[-1].startswith("http://127.0.0.1:8081/debug/sessions?")


@pytest.mark.usefixtures("server")
def test_a_service_without_sessions_says_so(routers: Routers) -> None:
    routers.answer = lambda _: '{"total": 0, "sessions": []}'
    result = call(sessions, "demo", "--each")
    assert "there is no session yet" in result.output
    assert result.return_value == 0


def test_the_orders_and_the_bound_are_those_of_the_routers() -> None:
    from weft_operator.commands import session_rows

    assert set(session_rows.ORDERS) == set(ORDERS)
    assert session_rows.MOST == MOST
