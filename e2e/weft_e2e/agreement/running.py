"""Run the comparison: a stack for each policy, all at once, and one load after the other on all of them together."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from weft_e2e.agreement.comparison import Comparison, compare
from weft_e2e.agreement.live import Measured, measure, measure_overhead
from weft_e2e.agreement.scenario import Scenario
from weft_e2e.stack import Stack, running
from weft_planner.simulation import Outcome

log = logging.getLogger(__name__)

PREDICTION_SEEDS = 10
"""Runs that differ in the policy's dice alone; most policies throw none."""


@dataclass(frozen=True, slots=True)
class Study:
    """What to compare: policies, loads as shares of each policy's simulated capacity, seconds of arrivals at each load.

    A load that disagrees while the machine was too busy is measured once more.
    """

    scenario: Scenario
    policies: tuple[str, ...]
    loads: tuple[float, ...]
    seconds: float
    seed: int = 1

    def predictions(self) -> Mapping[tuple[str, float], Sequence[Outcome]]:
        """Simulate everything that will be measured."""
        found = {}
        for policy in self.policies:
            capacity = self.scenario.capacity(policy)
            for load in self.loads:
                sample = self.scenario.sample(rate=load * capacity, seconds=self.seconds, seed=self.seed)
                found[policy, load] = self.scenario.predict(policy, sample, seeds=PREDICTION_SEEDS)
        return found


def run(study: Study, folder: Path, *, done: Callable[[Comparison], None] = lambda _: None) -> list[Comparison]:
    """Return a comparison for every load and policy; ``done`` hears of each when it is there.

    Raises:
        ReplayFailedError: a round failed.
    """
    with ExitStack() as ends:
        places = {policy: folder / policy for policy in study.policies}
        for place in places.values():
            place.mkdir(parents=True)
        contexts = [running(study.scenario.stack(policy), place) for policy, place in places.items()]
        with ThreadPoolExecutor(len(contexts)) as pool:  # a stack waits for its processes most of the time
            starting = [pool.submit(_enter, ends, context) for context in contexts]
            predicted = study.predictions()
        stacks = {policy: start.result() for policy, start in zip(places, starting, strict=True)}
        return asyncio.run(_measured(study, stacks, predicted, done))


def _enter(ends: ExitStack, context: AbstractContextManager[Stack]) -> Stack:
    stack = context.__enter__()
    ends.push(context)
    return stack


async def _measured(
    study: Study,
    stacks: Mapping[str, Stack],
    predicted: Mapping[tuple[str, float], Sequence[Outcome]],
    done: Callable[[Comparison], None],
) -> list[Comparison]:
    alone = await asyncio.gather(
        *(measure_overhead(stack, study.scenario, policy=policy) for policy, stack in stacks.items())
    )
    overhead = dict(zip(stacks, alone, strict=True))
    found: list[Comparison] = []
    for load in study.loads:

        async def once(policy: str, attempt: int, load: float = load) -> Measured:
            return await measure(stacks[policy], predicted[policy, load][0], run=f"{load:g}-{attempt}")

        def judged(policy: str, measured: Measured, load: float = load) -> Comparison:
            return compare(
                predicted[policy, load],
                measured.outcome,
                policy=policy,
                load=load,
                overhead_s=overhead[policy],
                starved=measured.starved,
            )

        first = await asyncio.gather(*(once(policy, 0) for policy in stacks))
        judgement = {policy: judged(policy, measured) for policy, measured in zip(stacks, first, strict=True)}
        again = [policy for policy, one in judgement.items() if one.disagreements and one.starved]
        for policy in again:
            log.warning("starved_measurement_repeated", extra={"comparison": str(judgement[policy])})
        second = await asyncio.gather(*(once(policy, 1) for policy in again))
        judgement.update((policy, judged(policy, measured)) for policy, measured in zip(again, second, strict=True))
        for one in judgement.values():
            done(one)
        found += judgement.values()
    return found
