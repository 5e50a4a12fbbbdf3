"""Run the comparison: a stack for each policy, all at once, and one load after the other on all of them together."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from weft_e2e.agreement.comparison import TTFT_WITHIN, Comparison, Figure, compare
from weft_e2e.agreement.live import measure, measure_overhead
from weft_e2e.agreement.scenario import AgreementScenario
from weft_e2e.agreement.turns import simulated_turn
from weft_e2e.stack import Stack, running
from weft_planner.simulation import Outcome

log = logging.getLogger(__name__)

PREDICTION_SEEDS = 10
"""Simulated runs whose mean is the prediction."""
RANDOM = ("ampd", "fixed-x")
RANDOM_SEEDS = 40
"""Policies that choose at random, and simulated runs that tell how far single ones are apart."""


@dataclass(frozen=True, slots=True)
class Study:
    """What to compare: for each policy loads as shares of its simulated capacity, and rounds at each load on average.

    A load that disagrees while the machine was too busy is measured once more.
    """

    scenario: AgreementScenario
    loads: Mapping[str, tuple[float, ...]]
    rounds: float
    seed: int = 1

    def predictions(self) -> Mapping[tuple[str, float], Sequence[Outcome]]:
        """Simulate everything that will be measured."""
        found = {}
        for policy, loads in self.loads.items():
            capacity = self.scenario.capacity(policy)
            for load in loads:
                sample = self.scenario.sample(rate=load * capacity, rounds=self.rounds, seed=self.seed)
                seeds = RANDOM_SEEDS if policy in RANDOM else PREDICTION_SEEDS
                found[policy, load] = self.scenario.predict(policy, sample, seeds=seeds)
        return found


def run(study: Study, folder: Path, *, done: Callable[[Comparison], None] = lambda _: None) -> list[Comparison]:
    """Return a comparison for every policy and load; ``done`` hears of each when it is there.

    Raises:
        ReplayFailedError: a round failed.
    """
    with ExitStack() as ends:
        places = {policy: folder / policy.replace("/", "-") for policy in study.loads}
        for place in places.values():
            place.mkdir(parents=True)
        contexts = [running(study.scenario.stack(policy), place) for policy, place in places.items()]
        with ThreadPoolExecutor(len(contexts)) as pool:  # a stack waits for its processes most of the time
            starting = [pool.submit(_enter, ends, context) for context in contexts]
            predicted = study.predictions()
        stacks = {policy: start.result() for policy, start in zip(places, starting, strict=True)}
        return asyncio.run(_all(study, stacks, predicted, done))


def _enter(ends: ExitStack, context: AbstractContextManager[Stack]) -> Stack:
    stack = context.__enter__()
    ends.push(context)
    return stack


async def _all(
    study: Study,
    stacks: Mapping[str, Stack],
    predicted: Mapping[tuple[str, float], Sequence[Outcome]],
    done: Callable[[Comparison], None],
) -> list[Comparison]:
    async def of(policy: str, stack: Stack) -> list[Comparison]:
        overhead_s = await measure_overhead(stack, study.scenario, policy=policy)
        found = []
        for load in study.loads[policy]:
            found.append(
                await _measured(
                    stack, predicted[policy, load], study.scenario, policy=policy, load=load, overhead_s=overhead_s
                )
            )
            done(found[-1])
        return found

    return [one for found in await asyncio.gather(*(of(*item) for item in stacks.items())) for one in found]


async def _measured(
    stack: Stack,
    predicted: Sequence[Outcome],
    scenario: AgreementScenario,
    *,
    policy: str,
    load: float,
    overhead_s: float,
) -> Comparison:
    turn_s = simulated_turn(predicted[0], scenario)

    async def once(attempt: int) -> Comparison:
        measured = await measure(stack, predicted[0], run=f"{load:g}-{attempt}")
        return compare(
            predicted,
            measured.outcome,
            policy=policy,
            load=load,
            overhead_s=overhead_s,
            others=(Figure("a remote prefill's turn", turn_s, measured.turn_s, TTFT_WITHIN),),
            starved=measured.starved,
            waited_s=measured.waited_s,
            scattered=policy in RANDOM,
        )

    first = await once(0)
    if not (first.disagreements and first.starved):
        return first
    log.warning("starved_measurement_repeated", extra={"comparison": str(first)})
    return await once(1)
