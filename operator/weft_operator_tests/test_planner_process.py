"""The planner as a child process: it may hang, crash or talk nonsense, and the operator goes on."""

import asyncio
import json
import sys
import time
from pathlib import Path

import pytest

from weft_operator.planning.client import PlannerClient
from weft_operator.planning.planner_process import Planned, Refused, solve
from weft_operator.planning.request import planner_request, request_hash
from weft_operator_tests.samples import KEY, planned
from weft_operator_tests.valid import service, spec

pytestmark = pytest.mark.component

REQUEST = planner_request(spec())


def program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


async def test_the_real_planner_answers() -> None:
    answer = await solve(REQUEST, deadline=40)
    assert isinstance(answer, Planned), answer
    assert {group.role for group in answer.plan.groups} == {"prefill", "decode"}
    assert answer.plan.gpus <= 16
    assert answer.profile["gpu"] == "nvidia-h20"
    again = await solve(REQUEST, deadline=40)
    assert again == answer, "the same question has the same answer"


async def test_the_real_planner_says_what_is_impossible() -> None:
    body = service()
    body["spec"]["capacity"]["pools"][0] |= {"degrees": [1], "gpuType": "nvidia-l4"}
    answer = await solve(planner_request(spec(body)), deadline=40)
    assert isinstance(answer, Refused)
    assert (answer.reason, answer.passing) == ("ModelDoesNotFit", False)
    assert "GB" in answer.message


async def test_a_hanging_planner_is_ended_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    hanging = program(
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen(['sleep', '60'])\nopen({str(pid_file)!r}, 'w').write(str(child.pid))\ntime.sleep(60)"
    )
    begin = time.monotonic()
    answer = await solve(REQUEST, deadline=3.0, command=hanging)
    assert time.monotonic() - begin < 20
    assert isinstance(answer, Refused)
    assert (answer.reason, answer.passing) == ("PlannerTimeout", True)
    assert "within 3 s" in answer.message
    child = Path("/proc") / pid_file.read_text() / "stat"
    deadline = time.monotonic() + 15
    while child.exists() and child.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the planner's own child is still there"
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("text", "reason", "words", "passing"),
    [
        ("import os; os.kill(os.getpid(), 11)", "PlannerCrashed", "SIGSEGV", True),
        ("import sys; sys.exit('out of luck')", "PlannerCrashed", "status 1: out of luck", True),
        ("import os; os.kill(os.getpid(), 40)", "PlannerCrashed", "signal 40", True),
        ("print('hello')", "PlannerCrashed", "cannot be read", True),
        ("print('[]')", "PlannerCrashed", "an object is expected, not list", True),
        ('print(\'{"status": "ok", "plan": null, "profile": {}}\')', "PlannerCrashed", "plan: an object", True),
        ('print(\'{"status": "ok"}\')', "PlannerCrashed", "cannot be read", True),
        ("import sys; sys.stderr.write('slo.ttft: no'); sys.exit(2)", "InvalidSpec", "slo.ttft: no", False),
        ('print(\'{"status": "infeasible", "reason": "TooFewGpus", "message": "2"}\')', "TooFewGpus", "2", False),
    ],
)
async def test_every_end_has_a_reason(text: str, reason: str, words: str, passing: bool) -> None:
    answer = await solve(REQUEST, deadline=10, command=program(text))
    assert isinstance(answer, Refused)
    assert (answer.reason, answer.passing) == (reason, passing)
    assert words in answer.message


async def test_a_planner_that_is_not_there_is_a_reason_too() -> None:
    answer = await solve(REQUEST, deadline=5, command=("/nonexistent/planner",))
    assert isinstance(answer, Refused)
    assert answer.reason == "PlannerCrashed"
    assert "No such file" in answer.message


async def test_the_planner_is_the_first_to_go_when_memory_ends() -> None:
    text = "import json,pathlib,sys; sys.exit(pathlib.Path('/proc/self/oom_score_adj').read_text().strip())"
    answer = await solve(REQUEST, deadline=10, command=program("import time; time.sleep(0.2)\n" + text))
    assert isinstance(answer, Refused)
    assert "1000" in answer.message


async def test_a_new_question_ends_the_planner_of_the_old_one() -> None:
    started: list[object] = []
    ended: list[object] = []

    async def slow(request: dict[str, object]) -> Planned:
        started.append(request)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append(request)
            raise
        return planned()

    planner_client = PlannerClient(solve=slow, enqueue=lambda _key: None, clock=lambda: 0.0)
    assert planner_client.ask(KEY, REQUEST, request_hash(REQUEST)) is None
    await asyncio.sleep(0.01)
    assert planner_client.ask(KEY, REQUEST, request_hash(REQUEST)) is None
    assert len(started) == 1, "the same question is put once"
    other = json.loads(json.dumps(REQUEST)) | {"seed": 7}
    assert planner_client.ask(KEY, other, request_hash(other)) is None
    await asyncio.sleep(0.01)
    assert (len(started), len(ended)) == (2, 1)
    await planner_client.close()
    assert len(ended) == 2
