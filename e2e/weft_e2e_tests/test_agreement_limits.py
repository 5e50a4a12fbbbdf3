"""Limits of an engine's steps: what the simulator predicts is what mock engines do, on virtual time."""

import heapq
import itertools
from collections.abc import Sequence as Prompts
from dataclasses import dataclass, replace

import numpy as np
import pytest

from weft_e2e.agreement.scenario import DEGREE, default_scenario, policy_choice
from weft_mock.scheduler import Step
from weft_mock.sequence import Sequence
from weft_mock_tests.machine import REMOTE, Machine
from weft_planner.simulation import Layout, Outcome, Worker, simulate
from weft_planner.simulation.options import StepLimits
from weft_planner.workload.sessions import Sample

SCENARIO = default_scenario()
ARRIVALS = [(0.05 * k, 150 + 90 * (k * 7 % 11), 4 + 5 * (k % 3)) for k in range(12)]
"""(arrival, tokens of the prompt, tokens of the answer): prompts come faster than one worker computes them."""


@dataclass
class Pair:
    """A prefill and a decode engine: prefills go to the first in order, a few at a time; the second fetches KV."""

    prefill: Machine
    decode: Machine
    concurrency: int = 1

    def __post_init__(self) -> None:
        self.events: list[tuple[float, int, str, int]] = []
        self.count = itertools.count()
        self.steps: dict[str, Step] = {}
        self.queue: list[int] = []
        self.inside: dict[Sequence, int] = {}
        self.answers: dict[int, Sequence] = {}

    def serve(self, arrivals: Prompts[tuple[float, int, int]]) -> None:
        """Serve them all."""
        for number, (at, *_) in enumerate(arrivals):
            self._push(at, "arrival", number)
        while self.events:
            now, _, what, number = heapq.heappop(self.events)
            self.prefill.now = self.decode.now = now
            if what == "arrival":
                self.queue.append(number)
            elif what == "fetched":
                self.decode.scheduler.fetched(self.answers[number], arrivals[number][1], now)
            else:
                self._end(what, now, arrivals)
            self._begin(now, arrivals)

    def _push(self, at: float, what: str, number: int) -> None:
        heapq.heappush(self.events, (at, next(self.count), what, number))

    def _end(self, what: str, now: float, arrivals: Prompts[tuple[float, int, int]]) -> None:
        machine = getattr(self, what)
        for emission in machine.scheduler.finish(self.steps.pop(what), now):
            machine.out[emission.sequence].append((now, emission.token))
            if what == "prefill":
                number = self.inside.pop(emission.sequence)
                _, length, tokens = arrivals[number]
                self.answers[number] = self.decode.add(
                    _prompt(number, length), tokens=tokens, source=replace(REMOTE, tokens=length), importing=True
                )

    def _begin(self, now: float, arrivals: Prompts[tuple[float, int, int]]) -> None:
        for what, machine in (("prefill", self.prefill), ("decode", self.decode)):
            if what in self.steps:
                continue
            while what == "prefill" and self.queue and len(self.inside) < self.concurrency:
                number = self.queue.pop(0)
                self.inside[self.prefill.add(_prompt(number, arrivals[number][1]), tokens=1)] = number
            for sequence in machine.scheduler.admit(now).fetch:
                number = next(k for k, one in self.answers.items() if one is sequence)
                seconds = SCENARIO.profile.t_kv(arrivals[number][1], source=DEGREE, destination=DEGREE)
                self._push(now + seconds, "fetched", number)
            step = machine.scheduler.plan()
            if step is not None:
                self.steps[what] = step
                self._push(now + step.seconds, what, 0)


def _prompt(number: int, length: int) -> list[int]:
    return [number + 1] * length


def predicted(prefill: StepLimits, decode: StepLimits, concurrency: int) -> Outcome:
    """Simulate one round for each arrival on one worker of each role."""
    count = len(ARRIVALS)
    at, prompt, answer = (np.array([one[k] for one in ARRIVALS], float) for k in range(3))
    sample = Sample(
        rate=1.0, window=float(at[-1]) + 1.0, arrival=at, first_row=np.arange(count), session=np.arange(count),
        history=np.zeros(count), increment=prompt, tokens=answer, gap=np.zeros(count), reserve=prompt + answer,
        dropped=0.0, past=0.0, short_past=False, session_class=np.zeros(count, np.int64), prefix=np.zeros(count),
    )  # fmt: skip
    choice = replace(policy_choice("always-remote"), order="fcfs")
    options = replace(SCENARIO.options, prefill=prefill, decode=decode, prefill_concurrency=concurrency)
    layout = Layout((Worker(DEGREE),), (Worker(DEGREE),))
    return simulate(sample, layout, SCENARIO.costs, choice, [SCENARIO.slo], options=options)


@pytest.mark.parametrize(
    ("prefill", "decode", "concurrency"),
    [
        (StepLimits(), StepLimits(), 1),
        (StepLimits(), StepLimits(max_sequences=2), 1),
        (StepLimits(max_tokens=200), StepLimits(), 1),
        (StepLimits(max_tokens=700), StepLimits(max_sequences=3, max_tokens=8), 3),
    ],
)
def test_limited_steps_take_as_long_as_predicted(prefill: StepLimits, decode: StepLimits, concurrency: int) -> None:
    def machine(limits: StepLimits, *, prefill_only: bool) -> Machine:
        batch, chunk = limits.max_sequences or 256, limits.max_tokens
        costs = SCENARIO.profile
        return Machine(tokens=100_000, chunk=chunk, batch=batch, block=1, costs=costs, prefill_only=prefill_only)

    pair = Pair(machine(prefill, prefill_only=True), machine(decode, prefill_only=False), concurrency)
    pair.serve(ARRIVALS)
    times = [np.array(pair.decode.times(pair.answers[number])) for number in range(len(ARRIVALS))]
    outcome = predicted(prefill, decode, concurrency)
    measured = [float(one[0]) - at for one, (at, *_) in zip(times, ARRIVALS, strict=True)]
    assert measured == pytest.approx(outcome.ttft.tolist(), rel=1e-6)
    assert [float(np.diff(one).mean()) for one in times] == pytest.approx(outcome.itl_mean.tolist(), rel=1e-6)
    free = predicted(StepLimits(), StepLimits(), 1)
    assert (prefill, decode) == (StepLimits(), StepLimits()) or not np.allclose(free.ttft, outcome.ttft)
