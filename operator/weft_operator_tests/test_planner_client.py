"""The planner's desk: one question at a time, asked again when a refusal may pass, never left open."""

import asyncio
from collections.abc import Awaitable, Callable

from weft_operator.api.objects import ServiceKey
from weft_operator.planning.client import PlannerClient
from weft_operator.planning.planner_process import Answer, Refused
from weft_operator.planning.request import Request
from weft_operator_tests.samples import KEY, planned


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.woken: list[ServiceKey] = []

    def planner_client(self, solve: Callable[[Request], Awaitable[Answer]]) -> PlannerClient:
        """Return a desk that runs on this clock."""
        return PlannerClient(solve=solve, enqueue=self.woken.append, clock=lambda: self.now)


async def turn() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_there_is_no_requeue_while_the_planner_is_at_work() -> None:
    clock = Clock()
    gate = asyncio.Event()
    answers: list[Answer] = [Refused("PlannerTimeout", "no", passing=True), planned()]

    async def solve(_request: Request) -> Answer:
        await gate.wait()
        return answers.pop(0)

    planner_client = clock.planner_client(solve)
    assert planner_client.ask(KEY, {}, "h") is None
    assert planner_client.retry_in(KEY) is None
    gate.set()
    await turn()
    assert (len(clock.woken), planner_client.retry_in(KEY)) == (1, 15.0)
    gate.clear()
    clock.now = 20.0
    assert isinstance(planner_client.ask(KEY, {}, "h"), Refused), "the last answer stands until there is a new one"
    assert planner_client.retry_in(KEY) is None, "the answer wakes the service; until then there is nothing to look at"
    gate.set()
    await turn()
    assert len(clock.woken) == 2
    assert planner_client.ask(KEY, {}, "h") == planned()
    assert planner_client.retry_in(KEY) is None
    await planner_client.close()


async def test_an_unforeseen_error_is_a_refusal_that_is_asked_again() -> None:
    clock = Clock()
    asked = 0

    async def solve(_request: Request) -> Answer:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise AttributeError("no such thing")
        return planned()

    planner_client = clock.planner_client(solve)
    assert planner_client.ask(KEY, {}, "h") is None
    await turn()
    answer = planner_client.ask(KEY, {}, "h")
    assert isinstance(answer, Refused)
    assert (answer.reason, answer.passing) == ("PlannerCrashed", True)
    assert "no such thing" in answer.message
    assert (len(clock.woken), planner_client.retry_in(KEY)) == (1, 15.0)
    clock.now = 15.0
    planner_client.ask(KEY, {}, "h")
    await turn()
    assert planner_client.ask(KEY, {}, "h") == planned()
    await planner_client.close()


async def test_equal_requests_of_many_services_are_put_once() -> None:
    clock = Clock()
    asked: list[Request] = []
    gate = asyncio.Event()

    async def solve(request: Request) -> Answer:
        asked.append(request)
        await gate.wait()
        return planned()

    planner_client = clock.planner_client(solve)
    keys = [ServiceKey("llm", f"s{n}") for n in range(1000)]
    for key in keys:
        assert planner_client.ask(key, {"gpus": 8}, "h") is None
    other = ServiceKey("llm", "other")
    assert planner_client.ask(other, {"gpus": 4}, "g") is None
    gate.set()
    await turn()
    await turn()
    assert asked == [{"gpus": 8}, {"gpus": 4}]
    assert sorted(clock.woken, key=str) == sorted([*keys, other], key=str)
    assert all(planner_client.ask(key, {"gpus": 8}, "h") == planned() for key in keys)
    assert planner_client.ask(ServiceKey("llm", "late"), {"gpus": 8}, "h") == planned(), (
        "what is known is answered at once"
    )
    assert len(asked) == 2
    await planner_client.close()


async def test_the_planner_works_on_for_the_others_and_ends_with_the_last() -> None:
    clock = Clock()
    ended: list[Request] = []

    async def solve(request: Request) -> Answer:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(request)
        return planned()

    planner_client = clock.planner_client(solve)
    first, second = ServiceKey("llm", "first"), ServiceKey("llm", "second")
    planner_client.ask(first, {}, "h")
    planner_client.ask(second, {}, "h")
    await turn()
    planner_client.forget(first)
    await turn()
    assert ended == []
    planner_client.forget(second)
    await turn()
    assert ended == [{}]
    planner_client.ask(first, {}, "h")
    await turn()
    await planner_client.close()
    assert ended == [{}, {}]


async def test_a_refusal_that_may_pass_is_not_kept_for_others() -> None:
    clock = Clock()
    answers: list[Answer] = [Refused("TooFewGpus", "no", passing=True), planned()]

    async def solve(_request: Request) -> Answer:
        return answers.pop(0)

    planner_client = clock.planner_client(solve)
    assert planner_client.ask(KEY, {}, "h") is None
    await turn()
    assert isinstance(planner_client.ask(KEY, {}, "h"), Refused)
    assert planner_client.ask(ServiceKey("llm", "late"), {}, "h") is None
    await turn()
    assert planner_client.ask(ServiceKey("llm", "late"), {}, "h") == planned()
    await planner_client.close()
