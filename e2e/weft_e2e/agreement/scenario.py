"""Say what is run twice, live and simulated: engines, layout, workload and SLO, at which load and under which policy.

The cost profile is that of a real model and GPU, made several times slower as a whole, and so are the clients' pauses
and the SLO. So the milliseconds that routers and a busy machine take vanish against the engines' own times, while
statistics windows, heartbeats and leases keep the length that they have in a service.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfile, DegreeCosts
from weft_core.efficiency import DEFAULTS
from weft_core.gpus import GPUS
from weft_core.layouts import PlannedGroup, WorkerRole, kind_of
from weft_core.models import MODELS
from weft_core.policies.registry import DEFAULT_MODE, POLICIES
from weft_e2e.agreement.sessions import fitted
from weft_e2e.stack import StackConfig, StackWorker
from weft_planner.simulation import Layout, Options, Outcome, PolicyChoice, SloClass, Worker, goodput, simulate
from weft_planner.simulation.inputs import slices
from weft_planner.workload.sessions import Sample, Size, draw
from weft_planner.workload.traffic import Gap, Rounds, Tokens, Workload
from weft_router.config import RoutingConfig
from weft_router.routing.class_policies import slicing_of

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
GPU = "nvidia-a100-80"
SLOWER = 6.0
"""How many times, unless told otherwise. A decode step takes some 100 ms then, a prefill 100 to 1000 ms; a routed round
costs the routers 4 to 6 ms."""
MAX_MODEL_LEN = 16384
HANDLE_TTL_S = 5.0
"""On the GPU. Longer than any pause; KV that nobody reads again is gone soon after, as in the simulator."""
DEGREE = 1
CAPACITY_ROUNDS = 1500.0
LATE_S = 0.03
"""What routers, client and machine add to a round, on a machine that is busy with other work, too."""


@dataclass(frozen=True, slots=True)
class AgreementScenario:
    """One service: cost profile, workers of degree 1 by role, traffic (its rate is replaced) and SLO in seconds.

    Everything takes ``slow`` times as long as it would on the GPU. Unless ``reads``, no engine reads a history back:
    prefill workers have what their own prefix caches hold.
    """

    slow: float
    profile: CostProfile
    prefill: int
    decode: int
    workload: Workload
    slo: SloClass
    reads: bool = True
    both: int = 0

    @property
    def layout(self) -> Layout:
        """Return the workers as the simulator takes them: each on a node by itself."""
        counts: tuple[tuple[WorkerRole, int], ...] = (
            ("prefill", self.prefill), ("decode", self.decode), ("both", self.both),
        )  # fmt: skip
        decode = (Worker(DEGREE),) * self.decode + (Worker(DEGREE, both=True),) * self.both
        kind = kind_of([PlannedGroup(role, DEGREE, count, "gpu") for role, count in counts if count])
        return Layout((Worker(DEGREE),) * self.prefill, decode, kind)

    @property
    def costs(self) -> Mapping[str, CostProfile]:
        """Return the cost profile of the only pool."""
        return {"gpu": self.profile}

    @property
    def options(self) -> Options:
        """Return how engines behave, and how routers slice local prefills when nobody tells them otherwise."""
        options = slicing_options(self.profile.degrees[DEGREE])
        return replace(options, history="read" if self.reads else "recompute")

    def stack(self, policy: str) -> StackConfig:
        """Return the same workers as processes to start, with routers under a policy.

        Engines that get prefills in slices run each beside their batch, as vLLM does: a slice that paused decoding
        would lengthen gaps by what its size was chosen to spare.
        """
        choice = policy_choice(policy)
        prefill = tuple(StackWorker(f"p-{k}", "prefill", DEGREE) for k in range(self.prefill))
        decode = tuple(StackWorker(f"d-{k}", "decode", DEGREE) for k in range(self.decode))
        both = tuple(StackWorker(f"b-{k}", "both", DEGREE) for k in range(self.both))
        return StackConfig(
            profile=self.profile,
            workers=(*prefill, *decode, *both),
            policy=choice.route,
            mode=choice.mode,
            chunk=self.options.chunk_limit if slices(choice, self.options) else None,
            ttft_s=self.slo.ttft_s,
            itl_s=self.slo.itl_s,
            max_model_len=MAX_MODEL_LEN,
            bidirectional=self.reads,
            handle_ttl_s=HANDLE_TTL_S * self.slow,
        )

    def sample(self, *, rate: float, rounds: float, seed: int) -> Sample:
        """Draw the sessions that arrive at an empty service, with so many rounds on average."""
        drawn = draw(
            self.workload,
            max_model_len=MAX_MODEL_LEN,
            round_seconds=self.slo.ttft_s,
            seed=seed,
            rate=rate,
            size=Size(rounds=rounds),
            steady=False,
        )
        return fitted(drawn)

    def capacity(self, policy: str) -> float:
        """Return the sessions per second up to which the simulator sees the SLO held, for 9 sessions of 10."""
        found = goodput(
            lambda rate, seed: self.sample(rate=rate, rounds=CAPACITY_ROUNDS, seed=seed),
            self.layout,
            self.costs,
            policy_choice(policy),
            [self.slo],
            guess=6.0 / self.slow,
            seeds=range(1000, 1003),
            options=self.options,
        )
        return found.rate.value

    def predict(self, policy: str, sample: Sample, *, seeds: int = 1) -> list[Outcome]:
        """Simulate a sample as it is, then shaken by some milliseconds and with other dice where the policy throws any.

        A live run is late by milliseconds here and there. They decide who comes first now and then, and move a P95 over
        200 rounds by 2 to 4 %, sometimes by 10 %: what is predicted is the mean.
        """
        choice = policy_choice(policy)
        return [
            simulate(
                shaken(sample, seed) if seed else sample,
                self.layout,
                self.costs,
                choice,
                [self.slo],
                options=self.options,
                seed=seed,
            )
            for seed in range(seeds)
        ]


def shaken(sample: Sample, seed: int) -> Sample:
    """Return a sample whose sessions come, and come back, up to LATE_S later."""
    rng = np.random.default_rng(seed)
    late = sample.arrival + rng.uniform(0.0, LATE_S, sample.sessions)
    return replace(sample, arrival=np.maximum.accumulate(late), gap=sample.gap + rng.uniform(0.0, LATE_S, sample.rows))


def policy_choice(policy: str) -> PolicyChoice:
    """Return a policy, such as ``weft/imd``, as a router runs it that was told nothing but its name and mode."""
    route, _, mode = policy.partition("/")
    if route == "weft" and not mode:
        mode = DEFAULT_MODE
    return PolicyChoice(route=route, mode=mode, binding=POLICIES[route].binding, order=POLICIES[route].order)


OPTIONS = Options(links="none", history="read", handover="pull", admission="reserve", warm_up=0.0, cool_down=0.0)
"""How mock engines behave: whole prompts one at a time, history read back, KV fetched between steps as vLLM does,
transfers that do not meet. Everything is counted: both sides begin with an empty service."""


def slicing_options(costs: DegreeCosts) -> Options:
    """Return how an engine behaves whose router slices local prefills as one does that nobody told otherwise."""
    slicing = slicing_of(RoutingConfig())
    if slicing is None:
        return OPTIONS
    return replace(
        OPTIONS,
        chunk_limit=slicing.most,
        chunk_fraction=slicing.share,
        chunk_floor=slicing.least_tokens(costs.step_figures),
        slice_turn_s=slicing.overhead_s,
    )


@cache
def default_scenario(slow: float = SLOWER) -> AgreementScenario:
    """Return two prefill workers and one decode worker of an 8B model that serve short agent sessions.

    One, because several decode workers hear of each other's prefills only by heartbeats, up to 1.5 s late, and the
    simulator routes by queues as they are.
    """
    return AgreementScenario(
        slow=slow,
        profile=slower(derive_profile(MODELS[MODEL], GPUS[GPU], degrees=[DEGREE], efficiency=DEFAULTS), slow),
        prefill=2,
        decode=1,
        workload=Workload(
            arrival_rate=1.0,
            rounds=Rounds(mean=2.5, cv=0.4),
            first_prompt=Tokens(mean=700, cv=0.5),
            increment=Tokens(mean=250, cv=0.5),
            decode=Tokens(mean=16, cv=0.4),
            gap=Gap(mean=slow / 3, cv=0.5),
            source="made up",
        ),
        slo=SloClass(ttft_s=slow / 3, itl_s=slow / 40),
    )


def slower(profile: CostProfile, factor: float) -> CostProfile:
    """Return a profile in which everything takes ``factor`` times as long."""
    return replace(
        profile,
        degrees={degree: costs.slower(factor) for degree, costs in profile.degrees.items()},
        transfers={
            ends: replace(cost, alpha=factor * cost.alpha, per_token=factor * cost.per_token)
            for ends, cost in profile.transfers.items()
        },
        provenance={**profile.provenance, "slower": f"{factor:g}"},
    )
