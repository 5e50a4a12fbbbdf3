"""Hold the sessions of a sample with a running stack, and put what was measured in the form of a simulated run."""

import asyncio
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from zlib import crc32

import numpy as np

from weft_core.policies.inputs import LOCAL
from weft_e2e.agreement.scenario import AgreementScenario
from weft_e2e.agreement.sessions import name_of, sessions_of
from weft_e2e.agreement.turns import measured_turn
from weft_e2e.agreement.waiting import core_wait_s
from weft_e2e.demo.engines import EnginePace, engine_pace
from weft_e2e.metrics import Growth, growth
from weft_e2e.replay.client import Deadlines, replay
from weft_e2e.replay.records import ClientLoad, ReplayResult, RoundRecord
from weft_e2e.stack import Stack
from weft_mock.tokenizer import filler
from weft_planner.simulation import Outcome
from weft_planner.simulation.records import SERVED, UNPLACED
from weft_planner.workload.sessions import Sample

LAG_LIMIT_S = 0.1
LOST_LIMIT_S = 0.5
WAIT_LIMIT_S = 0.15
"""Above these a machine is too busy to measure anything here."""
REMOTE = 0
"""The route of every round that was prefilled elsewhere: clients are not told where."""
TAIL_S = 90.0
"""A replay ends this long after the last arrival at the latest."""
SOLITARY_ROUNDS = 5
SOLITARY_EVERY_S = 0.2
"""On the GPU: longer than such a round takes."""
SOLITARY_PROMPT = 300.0
SOLITARY_ANSWER = 2.0


class ReplayFailedError(RuntimeError):
    """Report rounds that failed, or prompts of another length than was drawn: nothing can be compared then."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the client saw of a sample, and how late client, engines and routers were because the machine was busy.

    ``turn_s``: see ``measured_turn``. ``waited_s`` is the time per round that all processes together were ready to run
    and got no core, None where the machine does not say.
    """

    outcome: Outcome
    load: ClientLoad
    pace: EnginePace | None
    turn_s: float = math.nan
    waited_s: float | None = None
    counted: Growth | None = None
    """What routers and engines counted meanwhile, where they tell."""

    @property
    def starved(self) -> tuple[str, ...]:
        """Say how the machine was too busy for these figures, nothing when it was not.

        That all cores are busy does not spoil them by itself: everything measured takes so much longer.
        """
        return self.starved_beyond(WAIT_LIMIT_S)

    def starved_beyond(self, wait_s: float) -> tuple[str, ...]:
        """Return the same where a round's work may wait so long for a core: long answers wait with each token."""
        findings = []
        if self.load.lag_p99_s > LAG_LIMIT_S:
            findings.append(f"the client's event loop was late by {1e3 * self.load.lag_p99_s:.0f} ms at P99")
        if self.pace is not None and self.pace.lost_s > LOST_LIMIT_S:
            findings.append(f"the engines fell behind their profile by {self.pace.lost_s:.1f} s")
        if self.waited_s is not None and self.waited_s > wait_s:
            findings.append(f"each round's work waited {1e3 * self.waited_s:.0f} ms for a core")
        return tuple(findings)


async def measure(
    stack: Stack, predicted: Outcome, *, run: str, failures: bool = False, tail_s: float = TAIL_S
) -> Measured:
    """Hold the sessions of a prediction's sample; ``run`` names the replay, each one of a stack needs its own.

    Its words are its own, too: no engine has them in its prefix cache. With ``failures`` a round that fails is one that
    was not served. Nothing is waited for longer than ``tail_s`` after the last session began.

    Raises:
        ReplayFailedError: a round was not answered in full, or its prompt had another length than the sample says.
    """
    sample = predicted.sample
    pids = [os.getpid(), *stack.pids]
    before = await asyncio.to_thread(stack.metrics_pages)
    waited = core_wait_s(pids)
    deadline = float(sample.arrival[-1]) + tail_s
    result = await replay(
        sessions_of(sample),
        replace(stack.target, run=f"{run}-"),
        filler=partial(_words, crc32(run.encode())),
        deadlines=Deadlines(round_s=deadline, replay_s=deadline),
    )
    now = core_wait_s(pids)
    after = await asyncio.to_thread(stack.metrics_pages)
    return Measured(
        outcome=outcome_of(result, predicted, failures=failures),
        load=result.load,
        pace=engine_pace(before, after),
        turn_s=measured_turn(before, after),
        waited_s=None if now is None or waited is None else (now - waited) / sample.rows,
        counted=growth(before, after),
    )


async def measure_overhead(stack: Stack, scenario: AgreementScenario, *, policy: str) -> float:
    """Return the seconds that client, network and routers add to a round's TTFT: the least over solitary rounds.

    What a busy machine adds now and then is none of theirs. With nobody else about, and no history that a prefix cache
    might know, everything else that a round takes is a matter of the cost profile alone.
    """
    sample = solitary(scenario)
    predicted = scenario.predict(policy, sample)[0]
    found = await measure(stack, predicted, run="alone")
    return float(np.min(found.outcome.ttft - predicted.ttft))


def solitary(scenario: AgreementScenario) -> Sample:
    """Return sessions of one short round each, far enough apart that none meets another."""
    count = SOLITARY_ROUNDS
    every = SOLITARY_EVERY_S * scenario.slow
    apart = scenario.sample(rate=1.0, rounds=1.0, seed=0)
    return replace(
        apart,
        window=count * every,
        arrival=every * np.arange(count, dtype=np.float64),
        first_row=np.arange(count),
        session=np.arange(count),
        history=np.zeros(count),
        increment=np.full(count, SOLITARY_PROMPT),
        tokens=np.full(count, SOLITARY_ANSWER),
        gap=np.zeros(count),
        reserve=np.full(count, SOLITARY_PROMPT + SOLITARY_ANSWER),
        session_class=np.zeros(count, np.int64),
        prefix=np.zeros(count),
    )


def outcome_of(result: ReplayResult, predicted: Outcome, *, failures: bool = False) -> Outcome:
    """Return measured rounds as an outcome, so that one piece of code judges both sides.

    What a client cannot see (reasons, busy time, events) stays as predicted. With ``failures`` rounds may have failed.

    Raises:
        ReplayFailedError: see ``measure``.
    """
    sample = predicted.sample
    found = {(record.session, record.index): record for record in result.records}
    places = np.arange(sample.rows) - sample.first_row[sample.session]
    rows = [found[name_of(number), int(k)] for number, k in zip(sample.session, places, strict=True)]
    served = np.array([record.ok for record in rows])
    _check(rows, sample, failures=failures)
    sent = np.array([record.sent_s for record in rows])
    ttft = np.array([math.inf if record.ttft_s is None or not record.ok else record.ttft_s for record in rows])
    decoding = np.array([math.fsum(record.gaps_s) for record in rows])
    gaps = np.array([record.decode_tokens - 1 for record in rows], np.int64)
    some = np.maximum(gaps, 1)
    limit = predicted.slo[0].itl_s
    return replace(
        predicted,
        arrival=sent,
        ttft=ttft,
        finished=sent + ttft + decoding,
        itl_mean=np.where(gaps > 0, decoding / some, 0.0),
        itl_over=np.array([sum(gap > limit for gap in record.gaps_s) for record in rows]) / some,
        itl_max=np.array([max(record.gaps_s, default=0.0) for record in rows]),
        gaps=gaps,
        route=np.array([LOCAL if record.route == "local" else REMOTE for record in rows], np.int64),
        state=np.where(served, SERVED, UNPLACED),
    )


def _words(salt: int, count: int, seed: int) -> str:
    return filler(count, salt + seed)


def _check(rows: Sequence[RoundRecord], sample: Sample, *, failures: bool) -> None:
    failed = [record for record in rows if not record.ok]
    if failed and not failures:
        one = failed[0]
        raise ReplayFailedError(
            f"{len(failed)} of {len(rows)} rounds failed; round {one.index + 1} of {one.session}: {one.error}"
        )
    for record, prompt in zip(rows, sample.history + sample.increment, strict=True):
        if record.ok and record.prompt_tokens != int(prompt):
            raise ReplayFailedError(
                f"round {record.index + 1} of {record.session}: its prompt had {record.prompt_tokens} tokens, "
                f"the sample says {prompt:g}"
            )
