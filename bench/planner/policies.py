"""Measure in plain Python, as the router runs them, what a routing decision and a choice from a queue cost.

Times are the process's own CPU time: both run without waiting, and a busy machine hardly changes what they cost.
Prints a table of medians: every routing rule at 64 prefill workers, over ready figures (``route``), and from the live
snapshot to the decision, the snapshot's own making included (``live``; ``live 4`` at four workers), and every queue
order at 256 waiting tasks, overloaded and not, with one TTFT SLO and with three. Queues are kept by deadline, as the
router keeps them; the column "mixed" is a queue in no order. Exit status 1 when a median exceeds its target (decision
100 us, queue 50 us).
"""

import argparse
import os
import platform
import random
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Sequence

from weft_core.cost import CostProfile, DecodePiece, DegreeCosts, PrefillPiece, TransferCost, with_chunk_costs
from weft_core.policies.inputs import (
    MAX_WINDOW,
    LocalFigures,
    QueueInputs,
    RemoteFigures,
    RoutingInputs,
    TaskFigures,
)
from weft_core.policies.live import Routing
from weft_core.policies.policy import QueueOrder, RoutingPolicy
from weft_core.policies.registry import MODES, ORDERS, POLICIES, REASONS, parameters
from weft_core.policies.slices import Slicing
from weft_core.policies.snapshot import Circumstances, DecodeWorkerView, PrefillTask, PrefillWorkerView
from weft_core.slo import Slo

WORKERS = 64
FEW = 4
SESSIONS = 32
TASKS = 256
DECISION_US = 100.0
ORDER_US = 50.0
SLO = Slo(ttft_s=2.0, itl_s=0.05)
DECODE = (DecodePiece(0.01, 2e-4, 1e-7), DecodePiece(0.012, 1e-4, 2e-7))


def pieces(degree: int) -> tuple[PrefillPiece, ...]:
    """Return the prefill regimes of a degree."""
    return PrefillPiece(0.02, 2e-4 / degree, 1e-8 / degree), PrefillPiece(0.03, 0.0, 0.0, 1e-7)


PROFILE = CostProfile(
    model="bench",
    gpu="none",
    engine="bench",
    kv_bytes_per_token=100_000,
    degrees={
        n: DegreeCosts(
            prefill=pieces(n),
            decode=with_chunk_costs(DECODE, pieces(n)),
            weight_bytes_per_gpu=1,
            kv_capacity_tokens=10**6,
        )
        for n in (1, 2, 4, 8)
    },
    transfers={(s, d, "inter-node"): TransferCost(0.005, 1e-6) for s in (1, 2, 4, 8) for d in (1, 2, 4, 8)},
)


def microseconds(call: Callable[[], object], *, repeats: int) -> float:
    """Return the median time of a call over batches of 100."""
    batches = timeit.repeat(call, number=100, repeat=repeats, timer=time.process_time)
    return statistics.median(batches) / 100 * 1e6


def decision(policy: RoutingPolicy, mode: str, *, repeats: int) -> tuple[float, str]:
    """Return the median over ready figures, and the reason given; no window has slack, so every policy has to look."""
    dice = random.Random(1)  # noqa: S311 - the same figures in every run
    task = TaskFigures(2000.0, 600.0, 0.1, SLO.ttft_s, SLO.itl_s, 1.0, 250.0, 5.0, 0.9, 0.0, 9.0, 0.3)
    local = LocalFigures(0.4, 0.3, 0.5, 0.4, 0.049, float(SESSIONS), 64_000.0, 0.02, 300_000.0, 2.0)
    remote = [
        RemoteFigures(
            dice.uniform(0, 3), 0.3, 0.02, 0.01, 1.95, float(dice.randrange(5)), 0.0, dice.random(), 0.0, 1e10, 0.0,
            3.0, 0.0,
        )
        for _ in range(WORKERS)
    ]  # fmt: skip
    order = list(range(WORKERS))
    dice.shuffle(order)
    inputs = RoutingInputs(
        task, local, remote, order, parameters(policy.name, mode),
        [dice.uniform(0.5, 1.5) for _ in range(SESSIONS)], [40.0] * SESSIONS, [0.0] * (WORKERS + 1),
    )  # fmt: skip
    return microseconds(lambda: policy.route(inputs), repeats=repeats), REASONS[policy.route(inputs)[1]]


def live(rule: RoutingPolicy, mode: str, *, workers: int, repeats: int) -> float:
    """Return the median from snapshot to decision; of the other workers only their views are there already."""
    dice = random.Random(1)  # noqa: S311 - the same figures in every run
    prefill = tuple(
        PrefillWorkerView(
            f"p{i}", (1, 2, 4, 8)[i % 4], dice.uniform(0, 3), dice.randrange(5), 1.95, dice.random(), 1.0,
        )
        for i in range(workers)
    )  # fmt: skip
    order = list(range(workers))
    dice.shuffle(order)
    sums, counts = [dice.uniform(0.5, 1.5) for _ in range(SESSIONS)], [40.0] * SESSIONS
    slicing = Slicing(overhead_s=0.005)
    routing = Routing(rule.name, mode=mode, overrides={}, profile=PROFILE, slo=SLO, slicing=slicing)

    def call() -> object:
        return routing.decide(
            PrefillTask(2000, 600),
            decode=DecodeWorkerView(
                worker="d", degree=8, queue_s=0.4, queued=2, windowed_itl=0.049, kv_used=64_000, kv_capacity=400_000,
                batch=SESSIONS, context=64_000, gap_sums=sums, gap_counts=counts,
            ),
            prefill=prefill,
            order=order,
            uniform=0.9,
            now=9.0,
            known=Circumstances(waited_s=0.1, later=True, answer=250.0, rate=5.0),
        )  # fmt: skip

    return microseconds(call, repeats=repeats)


def choice(order: QueueOrder, slos: Sequence[float], *, load: float, kept: bool, repeats: int) -> float:
    """Return the median of a choice among tasks that together take ``load`` x 256 x 0.3 s."""
    dice = random.Random(2)  # noqa: S311 - the same figures in every run
    now = 100.0
    rows = [(dice.uniform(0.1, 0.5) * load, now - dice.uniform(0, 2), dice.choice(slos)) for _ in range(TASKS)]
    if kept:
        rows.sort(key=lambda row: row[1] + row[2])
    seconds, enqueued, slo = ([row[i] for row in rows] for i in range(3))
    queue = QueueInputs(now, seconds, enqueued, slo, [0] * TASKS, [0] * TASKS, 3, 10**9, [0] * MAX_WINDOW)
    return microseconds(lambda: order.next_task(queue), repeats=repeats)


def main() -> int:
    """Print both tables; return 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=31, help="batches of 100 calls per median (default 31)")
    repeats = parser.parse_args().repeats
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, medians in us")
    print(f"\nrouting decision at {WORKERS} prefill workers (target {DECISION_US:g})")
    print(f"{'policy':18}{'mode':18}{'route':>8}{'live':>8}{'live 4':>8}  reason")
    worst = 0.0
    for rule in POLICIES.values():
        for mode in MODES if rule.name == "weft" else ("imd",):
            bare, reason = decision(rule, mode, repeats=repeats)
            many = live(rule, mode, workers=WORKERS, repeats=repeats)
            few = live(rule, mode, workers=FEW, repeats=repeats)
            worst = max(worst, many)
            name = mode if rule.name == "weft" else ""
            print(f"{rule.name:18}{name:18}{bare:8.1f}{many:8.1f}{few:8.1f}  {reason}")
    print(f"\nchoice from a queue of {TASKS} (target {ORDER_US:g}, queue kept by deadline)")
    print(f"{'order':18}{'TTFT SLOs':>10}{'overload':>10}{'light':>8}{'mixed':>8}")
    longest = 0.0
    for order in ORDERS.values():
        for slos in ((4.0,), (2.0, 4.0, 8.0)):
            full = choice(order, slos, load=1.0, kept=True, repeats=repeats)
            light = choice(order, slos, load=0.01, kept=True, repeats=repeats)
            mixed = choice(order, slos, load=1.0, kept=False, repeats=repeats)
            longest = max(longest, full, light)
            print(f"{order.name:18}{len(slos):10}{full:10.1f}{light:8.1f}{mixed:8.1f}")
    print(f"\nslowest decision {worst:.1f} us, slowest choice {longest:.1f} us")
    return int(worst > DECISION_US or longest > ORDER_US)


if __name__ == "__main__":
    sys.exit(main())
