"""The planner's desk: one question at a time, asked again when a refusal may pass, never left open."""

import asyncio
from collections.abc import Awaitable, Callable

from weft_operator.manifest import ServiceKey
from weft_operator.planning.child import Answer, Refused
from weft_operator.planning.desk import PlannerDesk
from weft_operator.planning.request import Request
from weft_operator_tests.samples import KEY, planned


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.woken: list[ServiceKey] = []

    def desk(self, solve: Callable[[Request], Awaitable[Answer]]) -> PlannerDesk:
        """Return a desk that runs on this clock."""
        return PlannerDesk(solve=solve, wake=self.woken.append, clock=lambda: self.now)


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_nobody_looks_again_while_the_planner_is_at_work() -> None:
    clock = Clock()
    gate = asyncio.Event()
    answers: list[Answer] = [Refused("PlannerTimeout", "no", passing=True), planned()]

    async def solve(_request: Request) -> Answer:
        await gate.wait()
        return answers.pop(0)

    desk = clock.desk(solve)
    assert desk.ask(KEY, {}, "h") is None
    assert desk.retry_in(KEY) is None
    gate.set()
    await turn()
    assert (len(clock.woken), desk.retry_in(KEY)) == (1, 15.0)
    gate.clear()
    clock.now = 20.0
    assert isinstance(desk.ask(KEY, {}, "h"), Refused), "the last answer stands until there is a new one"
    assert desk.retry_in(KEY) is None, "the answer wakes the service; until then there is nothing to look at"
    gate.set()
    await turn()
    assert len(clock.woken) == 2
    assert desk.ask(KEY, {}, "h") == planned()
    assert desk.retry_in(KEY) is None
    await desk.close()


async def test_an_unforeseen_error_is_a_refusal_that_is_asked_again() -> None:
    clock = Clock()
    asked = 0

    async def solve(_request: Request) -> Answer:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise AttributeError("no such thing")
        return planned()

    desk = clock.desk(solve)
    assert desk.ask(KEY, {}, "h") is None
    await turn()
    answer = desk.ask(KEY, {}, "h")
    assert isinstance(answer, Refused)
    assert (answer.reason, answer.passing) == ("PlannerCrashed", True)
    assert "no such thing" in answer.message
    assert (len(clock.woken), desk.retry_in(KEY)) == (1, 15.0)
    clock.now = 15.0
    desk.ask(KEY, {}, "h")
    await turn()
    assert desk.ask(KEY, {}, "h") == planned()
    await desk.close()
