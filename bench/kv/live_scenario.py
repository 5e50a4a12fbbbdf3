"""What runs live and in the simulator: the same engines, sessions and SLO, all of them sped up by one factor.

Two cores bear one prefill and one decode worker, on slower GPUs than those of the simulated page: fewer sessions come
in a minute, and fewer tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from bench.kv.sessions import CONTEXT, LIMITS, paced, recorded
from bench.live.search import goodput_of, next_step, rate_of, step_of

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfile
from weft_core.gpus import GPUS
from weft_core.kv_tiers import KVTier, tier_from_text
from weft_core.models import MODELS
from weft_e2e.agreement.scenario import OPTIONS, policy_choice, shaken, slower
from weft_e2e.stack_config import StackConfig, StackWorker
from weft_planner.simulation import Layout, Options, Outcome, SloClass, Worker, simulate
from weft_planner.simulation.options import StepLimits
from weft_planner.simulation.statistics import attainment
from weft_planner.workload.sessions import Sample

MODEL, GPU, DEGREE = "meta-llama/Llama-3.1-70B-Instruct", "nvidia-h20", 4
KV_TOKENS = 200_000
"""What each engine has for KV, a third of what fits: else two cores would not bear the rates at which it is full."""
SLO = SloClass(20.0, 0.05)
POLICY = "weft/ia"
CHUNK = 8192
"""Prompt tokens that an engine takes into one step beside decoding: what vLLM does on GPUs of 70 GiB and more."""
ANSWER = 128
"""Tokens of an answer at most: each one takes four processes some time of a core."""
LIVE_LIMITS = replace(LIMITS, max_decode_tokens=ANSWER)
ALONE, WITH_TIER = "GPUs alone", "with 1 TiB of host memory"
TIERS: Mapping[str, tuple[KVTier, ...]] = {ALONE: (), WITH_TIER: (tier_from_text("cpu:1Ti"),)}
WARM_UP = 0.1
"""Sessions that arrive in this first share of a run are not counted."""
SEEDS = (1, 2, 3)
"""Of the samples that goodputs are simulated with; the first one is run live."""
GUESS = 0.03
STEPS = 16
SHAKEN = 5
"""Simulated runs whose mean is a run's prediction."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything is ``speed`` times as fast as on the GPUs; sessions arrive for so many minutes of theirs."""

    speed: float
    minutes: float

    @property
    def profile(self) -> CostProfile:
        """Return what a worker's work costs in this time."""
        profile = derive_profile(MODELS[MODEL], GPUS[GPU], degrees=[DEGREE])
        costs = replace(profile.degrees[DEGREE], kv_capacity_tokens=KV_TOKENS)
        return slower(replace(profile, degrees={DEGREE: costs}), 1 / self.speed)

    @property
    def slo(self) -> SloClass:
        """Return the SLO in this time."""
        return SloClass(SLO.ttft_s / self.speed, SLO.itl_s / self.speed)

    def tiers(self, name: str) -> tuple[KVTier, ...]:
        """Return tiers whose loads take as much less time as everything does."""
        return tuple(
            replace(one, bytes_per_s=self.speed * one.bytes_per_s, latency_s=one.latency_s / self.speed)
            for one in TIERS[name]
        )

    def sample(self, *, rate: float, seed: int) -> Sample:
        """Return the sessions of a run, ``rate`` of them in a second of the GPUs' time."""
        return paced(recorded(LIVE_LIMITS), rate=rate, seed=seed, minutes=self.minutes, speed=self.speed)

    def options(self, tiers: str) -> Options:
        """Return how engines behave.

        They keep no KV for prefill workers to read, know not which sessions ended, and bound their steps' tokens.
        """
        return replace(
            OPTIONS,
            history="recompute",
            evicts="tokens",
            ended="keep",
            decode=StepLimits(max_tokens=CHUNK),
            tiers=self.tiers(tiers),
            warm_up=WARM_UP,
        )

    def stack(self, tiers: str) -> StackConfig:
        """Return the processes to start."""
        choice = policy_choice(POLICY)
        slo = self.slo
        return StackConfig(
            profile=self.profile,
            workers=(StackWorker("p-0", "prefill", DEGREE), StackWorker("d-0", "decode", DEGREE)),
            policy=choice.route,
            mode=choice.mode,
            ttft_s=slo.ttft_s,
            itl_s=slo.itl_s,
            max_model_len=CONTEXT + 256,
            chunk=CHUNK,
            bidirectional=False,
            corrects=False,
            kv_events=True,
            kv_tiers=self.tiers(tiers),
        )

    def simulate(self, sample: Sample, tiers: str, *, seed: int = 0) -> Outcome:
        """Simulate a sample once."""
        return simulate(
            sample,
            Layout((Worker(DEGREE),), (Worker(DEGREE),), "disaggregated"),
            {"gpu": self.profile},
            policy_choice(POLICY),
            [self.slo],
            options=self.options(tiers),
            seed=seed,
        )

    def predict(self, sample: Sample, tiers: str, *, runs: int = SHAKEN) -> list[Outcome]:
        """Simulate a sample as it is, then with its sessions some milliseconds later, as live ones are."""
        return [self.simulate(shaken(sample, k) if k else sample, tiers, seed=k) for k in range(runs)]

    def goodput(self, tiers: str, *, seeds: Sequence[int] = SEEDS) -> float:
        """Return the sessions in a second of the GPUs' time of which 90 % meet the SLO, simulated."""
        shares: dict[int, dict[int, float]] = {}
        while (step := next_step(shares, seeds, start=step_of(GUESS), resolution=1, most=STEPS)) is not None:
            for seed in seeds:
                share = attainment(self.simulate(self.sample(rate=rate_of(step), seed=seed), tiers))
                shares.setdefault(step, {})[seed] = 0.0 if np.isnan(share) else share
        return goodput_of(shares).rate


def solitary(scenario: Scenario, *, tokens: Sequence[float], apart_s: float) -> Sample:
    """Return sessions of one round each that meet nobody; prompts have so many tokens, answers two."""
    one, count = scenario.sample(rate=1.0, seed=0), len(tokens)
    prompts = np.array(tokens, np.float64)
    return replace(
        one,
        window=count * apart_s,
        arrival=apart_s * np.arange(count, dtype=np.float64),
        first_row=np.arange(count),
        session=np.arange(count),
        history=np.zeros(count),
        increment=prompts,
        tokens=np.full(count, 2.0),
        gap=np.zeros(count),
        reserve=prompts + 2.0,
        session_class=np.zeros(count, np.int64),
        prefix=np.zeros(count),
    )
