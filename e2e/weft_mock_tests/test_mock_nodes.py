"""One engine on two nodes: processes that meet over a socket, serve together, and end together."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weft_core.profile_json import profile_to_json
from weft_mock.config import ConfigError
from weft_mock.nodes import Nodes
from weft_mock_tests.engines import MODEL, profile
from weft_mock_tests.test_mock_process import completion, free_port, healthy

pytestmark = pytest.mark.component

PATIENCE_S = 60.0
Process = subprocess.Popen[str]


class Worker:
    """The nodes of one engine as processes; those that run are ended with the test."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.nodes = nodes
        self.port, self.meeting = free_port(), free_port()
        self.running: list[Process] = []
        (folder / "profile.json").write_text(json.dumps(profile_to_json(profile())))

    def start(self, rank: int) -> Process:
        """Start one node."""
        command = [sys.executable, "-m", "weft_mock", "--model", MODEL, "--profile", str(self.folder / "profile.json")]
        command += ["--degree", "2", "--listen", f"127.0.0.1:{self.port}", "--side-channel-port", str(free_port())]
        command += ["--nodes", str(self.nodes), "--node-rank", str(rank), "--leader", f"[::1]:{self.meeting}"]
        command += ["--nodes-listen", f"[::]:{self.meeting}", "--time-scale", "5"]
        with (self.folder / f"node-{rank}.log").open("a") as log:
            process = subprocess.Popen(command, stderr=log, text=True)
        self.running.append(process)
        return process

    def said(self, rank: int, words: str, times: int = 1) -> bool:
        """Return whether a node has logged something so often."""
        return (self.folder / f"node-{rank}.log").read_text().count(words) >= times

    def serves(self) -> bool:
        """Return whether the engine answers."""
        return healthy(self.port)


@contextlib.contextmanager
def worker(folder: Path, nodes: int = 2) -> Iterator[Worker]:
    found = Worker(folder, nodes)
    try:
        yield found
    finally:
        for process in found.running:
            process.kill()
            process.wait()


def eventually(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_the_leader_serves_once_all_have_joined_and_ends_with_a_follower(tmp_path: Path) -> None:
    with worker(tmp_path, nodes=3) as one:
        leader, first = one.start(0), one.start(1)
        eventually("one of two has joined", lambda: one.said(0, "node_joined"))
        assert not one.serves()
        second = one.start(2)
        eventually("an API", one.serves)
        eventually("word of it", lambda: one.said(1, "worker_whole") and one.said(2, "worker_whole"))
        with completion(one.port, max_tokens=2) as reply:
            assert reply.status == 200
        second.kill()
        assert leader.wait(PATIENCE_S) == 1
        assert first.wait(PATIENCE_S) in (0, 1), "its leader is gone"
        assert one.said(0, "node_lost")


def test_followers_wait_for_a_leader_and_end_when_it_is_killed(tmp_path: Path) -> None:
    with worker(tmp_path) as one:
        follower = one.start(1)
        eventually("it looks for the leader", lambda: one.said(1, "leader_awaited"))
        leader = one.start(0)
        eventually("an API", one.serves)
        leader.kill()
        assert follower.wait(PATIENCE_S) == 1
        one.start(0)
        one.start(1)
        eventually("an API after both came back", one.serves)


def test_an_orderly_end_of_the_leader_lets_live_requests_end_and_sends_followers_home(tmp_path: Path) -> None:
    with worker(tmp_path) as one:
        leader, follower = one.start(0), one.start(1)
        eventually("an API", one.serves)
        with completion(one.port, max_tokens=60, stream=True) as reply:
            reply.readline()
            leader.send_signal(signal.SIGTERM)
            assert b"[DONE]" in reply.read()
        assert (leader.wait(PATIENCE_S), follower.wait(PATIENCE_S)) == (0, 0)


def test_a_follower_that_joins_twice_is_sent_away(tmp_path: Path) -> None:
    with worker(tmp_path) as one:
        one.start(0)
        one.start(1)
        eventually("an API", one.serves)
        assert one.start(1).wait(PATIENCE_S) == 1
        assert one.said(1, "leader_refuses")
        assert one.serves()


@pytest.mark.parametrize(
    ("given", "field"),
    [({"count": 0}, "--nodes"), ({"count": 2, "rank": 2}, "--node-rank"), ({"count": 2, "rank": 1}, "--leader")],
)
def test_nodes_that_cannot_be_are_refused_by_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Nodes(**given)
