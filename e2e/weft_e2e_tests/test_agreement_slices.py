"""Local prefills in slices: what the simulator predicts is what a mock engine and a router do, on virtual time."""

from collections.abc import Sequence as Prompts
from dataclasses import replace

import numpy as np
import pytest

from weft_core.policies.live import Routing
from weft_core.policies.slices import Slicing
from weft_core.policies.snapshot import DecodeWorkerView
from weft_core.slo import Slo
from weft_e2e.agreement.scenario import DEGREE, default_scenario, policy_choice
from weft_mock.sequence import Sequence
from weft_mock_tests.machine import Machine
from weft_planner.simulation import Layout, Outcome, Worker, simulate
from weft_planner.workload.sessions import Sample

SCENARIO = default_scenario()
SLICING = Slicing(block=1, overhead_s=SCENARIO.options.slice_turn_s)


class Sidecar:
    """A router before one engine: a prefill at a time, each slice sent a turn after the one before was done."""

    def __init__(self) -> None:
        self.machine = Machine(tokens=16_000, chunk=4096, block=1, costs=SCENARIO.profile)
        self.answers: list[Sequence] = []
        self._routing = Routing(
            "weft", mode="imd", overrides={}, profile=SCENARIO.profile,
            slo=Slo(ttft_s=SCENARIO.slo.ttft_s, itl_s=SCENARIO.slo.itl_s), slicing=SLICING,
        )  # fmt: skip
        self._waiting: list[tuple[list[int], int]] = []
        self._at = 0
        self._sent: Sequence | None = None
        self._turn = 0.0

    def serve(self, arrivals: Prompts[tuple[float, int, int]]) -> None:
        """Serve (arrival, tokens of the prompt, tokens of the answer), in order of arrival."""
        coming = [(at, [number + 1] * prompt, answer) for number, (at, prompt, answer) in enumerate(arrivals)]
        machine = self.machine
        while True:
            while coming and coming[0][0] <= machine.now:
                self._waiting.append(coming.pop(0)[1:])
            self._send()
            if machine.step():
                continue
            later = [at for at, *_ in coming[:1]] + ([self._turn] if self._waiting else [])
            if not later:
                return
            machine.now = max(machine.now, min(later))

    def _send(self) -> None:
        machine = self.machine
        if self._sent is not None and machine.out[self._sent]:
            self._turn, self._sent = machine.times(self._sent)[0] + SLICING.overhead_s, None
        if self._sent is not None or not self._waiting or machine.now < self._turn:
            return
        prompt, answer = self._waiting[0]
        tokens = self._routing.next_slice(at=self._at, remaining=len(prompt) - self._at, decode=self._view())
        if tokens is None:
            self._waiting.pop(0)
            self._at = 0
            self._sent = machine.add(prompt, tokens=answer)
            self.answers.append(self._sent)
            return
        self._at += tokens
        self._sent = machine.add(prompt[: self._at], tokens=1)

    def _view(self) -> DecodeWorkerView:
        decoding = [one for one in self.machine.scheduler.running if one.missing == 1]
        held = sum(len(one.tokens) for one in decoding)
        return DecodeWorkerView("d", DEGREE, 0.0, 0, None, held, 16_000, len(decoding), held)


def predicted(arrivals: Prompts[tuple[float, int, int]], *, turn_s: float) -> Outcome:
    """Simulate one round for each arrival, on a worker that nobody prefills for."""
    count = len(arrivals)
    at, prompt, answer = (np.array([one[k] for one in arrivals], float) for k in range(3))
    sample = Sample(
        rate=1.0, window=float(at[-1]) + 1.0, arrival=at, first_row=np.arange(count), session=np.arange(count),
        history=np.zeros(count), increment=prompt, tokens=answer, gap=np.zeros(count), reserve=prompt + answer,
        dropped=0.0, past=0.0, short_past=False, session_class=np.zeros(count, np.int64), prefix=np.zeros(count),
    )  # fmt: skip
    choice = replace(policy_choice("weft/imd"), order="fcfs")
    layout = Layout((), (Worker(DEGREE),), "colocated")
    options = replace(SCENARIO.options, slice_turn_s=turn_s)
    return simulate(sample, layout, SCENARIO.costs, choice, [SCENARIO.slo], options=options)


def test_slices_beside_a_batch_take_as_long_as_predicted() -> None:
    # Two answer; then two prompts come one after the other, both too long for a step that holds the ITL SLO.
    arrivals = [(0.0, 300, 90), (0.1, 400, 90), (3.03, 900, 3), (3.5, 500, 3)]
    sidecar = Sidecar()
    sidecar.serve(arrivals)
    machine = sidecar.machine
    times = [np.array(machine.times(answer)) for answer in sidecar.answers]
    outcome = predicted(arrivals, turn_s=SLICING.overhead_s)
    measured = [float(one[0]) - at for one, (at, *_) in zip(times, arrivals, strict=True)]
    assert measured == pytest.approx(outcome.ttft.tolist(), rel=0.01)
    mean = [float(np.diff(one).mean()) for one in times]
    assert mean == pytest.approx(outcome.itl_mean.tolist(), rel=0.01)
    longest = [float(np.diff(one).max()) for one in times]
    assert longest == pytest.approx(outcome.itl_max.tolist(), rel=0.01)
    assert max(longest) <= SCENARIO.slo.itl_s

    by_itself = predicted(arrivals, turn_s=0.0)
    assert outcome.ttft[2] > 1.3 * by_itself.ttft[2], "an engine that slices by itself loses no step between slices"
    assert outcome.itl_mean[0] < by_itself.itl_mean[0]
