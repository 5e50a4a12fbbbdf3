"""Let the live router take every decision of simulated runs anew, from the same state, and count the differences.

The simulator calls its rules by address. Here the addresses are those of functions that first let the compiled rule
answer, and then ask the live code - ``Routing``, ``PrefillQueue``, ``Binding`` - about views made from the simulator's
workers. ``python -m weft_router_tests.replay 100000`` takes that many decisions; exit status 1 when one differs.
"""

import asyncio
import ctypes
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from weft_core.cost import CostProfile
from weft_core.heartbeat import QueueEntry
from weft_core.policies.live import Routing
from weft_core.policies.live_binding import Binding
from weft_core.policies.registry import BINDINGS, MODES, ORDERS, POLICIES, REASONS
from weft_core.policies.slices import Slicing
from weft_core.policies.snapshot import (
    BindingView,
    Circumstances,
    DecodeWorkerView,
    PrefillTask,
    PrefillWorkerView,
)
from weft_core.slo import Slo
from weft_core.timing import prefill_seconds
from weft_planner.simulation import records
from weft_planner.simulation.inputs import initial_state, slices
from weft_planner.simulation.layout import Layout, PolicyChoice, SloClass, Worker
from weft_planner.simulation.options import Options
from weft_planner.simulation.run import _first_events
from weft_planner.workload.sessions import Sample
from weft_planner_tests.simulated import profile, sample_of
from weft_router.workers.engine_slots import EngineSlot
from weft_router.workers.prefill_queue import PrefillQueue, QueueRule, _Waiting

_NOBODY = cast(asyncio.Future[EngineSlot], None)
"""Who waits in these queues; nothing is granted there."""
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


class _EnoughError(Exception):
    """Enough decisions were taken."""


@dataclass
class Tally:
    """How many decisions were taken by what, and which differed."""

    taken: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Return all decisions."""
        return sum(self.taken.values())


class Replay:
    """One simulated run whose decisions are taken twice."""

    def __init__(
        self, sample: Sample, layout: Layout, costs: dict[str, CostProfile], policy: PolicyChoice,
        slo: tuple[SloClass, ...], *, seed: int, tally: Tally, most: int,
    ) -> None:  # fmt: skip
        self._options = Options()
        self._state = initial_state(sample, layout, costs, policy, slo, options=self._options, seed=seed)
        self._layout = layout
        self._policy = policy
        self._slo = slo
        self._tally = tally
        self._most = most
        self._failure: BaseException | None = None
        self._names = {name: at for at, name in enumerate(records.WORKERS.names or ())}
        sliced = slices(policy, self._options)
        share = policy.chunk_share or self._options.chunk_fraction
        slicing = Slicing(share=share, idle_share=share, most=self._options.chunk_limit, least=1, block=1)
        first = costs[layout.decode[0].pool]
        self._routings = {
            (one.ttft_s, one.itl_s): Routing(
                policy.route, mode=policy.mode or "imd", overrides=policy.params, profile=first,
                slo=Slo(ttft_s=one.ttft_s, itl_s=one.itl_s), pools=costs, slicing=slicing if sliced else None,
            )
            for one in slo
        }  # fmt: skip
        self._sliced = sliced
        self._costs = costs
        self._binding = Binding(policy.binding)
        self._queue = PrefillQueue(
            profile=first, degree=layout.decode[0].degree, concurrency=1, limit=10**9,
            rule=QueueRule(policy.order, window=policy.window, cap=int(self._state.rules["cap"][0])), ttft_slo=1.0,
            clock=lambda: float(self._state.totals["now"][0]),
        )  # fmt: skip

    def run(self) -> None:
        """Play the run until its end or until enough decisions were taken."""
        from weft_planner.simulation.event_loop import run
        from weft_planner.simulation.policies import binding_code, order_code, routing_code
        from weft_planner.simulation.state_type import addresses

        rules, policy = self._state.rules[0], self._policy
        _first_events(self._state, self._options)
        kept = []
        for name, address, check in (
            ("decide", routing_code(policy.route).address, self._route),
            ("choose", order_code(policy.order).address, self._order),
            ("place", binding_code(policy.binding).address, self._place),
        ):
            callback = self._callback(_CALLBACK(address), check)
            kept.append(callback)
            rules[name] = ctypes.cast(callback, ctypes.c_void_p).value
        run(addresses(self._state))
        if self._failure is not None and not isinstance(self._failure, _EnoughError):
            raise self._failure

    def _callback(self, rule: Callable[[int], int], check: Callable[[Callable[[], int]], int]) -> Any:
        def called(address: int) -> int:
            try:
                if self._failure is None:
                    return check(lambda: rule(address))
            except BaseException as error:  # noqa: BLE001 - it must not pass through compiled code
                self._failure = error
                self._state.totals["event_limit"] = 0  # no event after this one
            return rule(address)

        return _CALLBACK(called)

    def _count(self, what: str, mine: object, theirs: object) -> None:
        self._tally.taken[what] += 1
        if mine != theirs:
            self._tally.differences.append(f"{what}: live {mine}, simulated {theirs}")
        if self._tally.total >= self._most:
            raise _EnoughError

    # Where a prefill runs.

    def _route(self, answer: Callable[[], int]) -> int:
        state, policy = self._state, self._policy
        task, local = _figures(state.task[0]), _figures(state.local[0])
        asked = int(state.totals["choices"][0])
        now = float(state.totals["now"][0])
        order = state.order[:asked].tolist()
        workers = [self._view(k) for k in range(asked)]
        home = self._home(local, {int(i) for i in state.candidates[:asked]}, task)
        found = self._routings[task["ttft_slo"], task["itl_slo"]].decide(
            PrefillTask(_whole(task["history"]), _whole(task["increment"])),
            decode=self._decode(home, local),
            prefill=workers,
            order=order,
            uniform=task["uniform"],
            now=now,
            known=Circumstances(
                waited_s=task["waited_s"], later=task["round"] >= 1, answer=task["answer"],
                rate=task["rate"], priority=int(task["priority"]), session=task["session"],
                cached=self._tokens("cached", asked), sent=self._tokens("sent", asked),
            ),
        )  # fmt: skip
        code = answer()
        choice, reason = code >> records.REASON_BITS, REASONS[code & ((1 << records.REASON_BITS) - 1)]
        remote = None if choice < 0 else workers[choice].worker
        chunked = remote is None and (reason == "local-chunked" or (reason != "local-whole" and self._sliced))
        name = f"{policy.route}/{policy.mode}" if policy.route == "weft" else policy.route
        self._count(f"route {name}", (found.remote, found.reason, found.chunked), (remote, reason, chunked))
        return code

    def _worker(self, place: int) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self._state.workers[place].item()
        return row

    def _of(self, row: tuple[Any, ...], name: str) -> float:
        return float(row[self._names[name]])

    def _held(self, row: tuple[Any, ...]) -> float:
        """Return the tokens of KV that rounds hold: what is evictable is free, as in the gauges of engines."""
        return self._of(row, "kv_used") - self._of(row, "evictable_kv")

    def _view(self, k: int) -> PrefillWorkerView:
        place = int(self._state.candidates[k])
        row, own = self._worker(place), self._layout.workers[place]
        windowed = float(self._state.remote["windowed_ttft"][k])
        return PrefillWorkerView(
            worker=f"w{place}",
            degree=own.degree,
            queue_s=self._of(row, "queue_s"),
            queued=self._queued(place),
            windowed_ttft=None if math.isnan(windowed) else windowed,
            kv_use=self._held(row) / self._of(row, "kv_capacity"),
            used_at=self._of(row, "last_chosen"),
            pool=own.pool,
            sessions=self._of(row, "assigned"),
            batch=int(self._of(row, "batch")),
        )

    def _tokens(self, figure: str, asked: int) -> dict[str, int]:
        """Return a figure of tokens of each candidate, by its name."""
        places, tokens = self._state.candidates[:asked].tolist(), self._state.remote[figure][:asked].tolist()
        return {f"w{place}": _whole(n) for place, n in zip(places, tokens, strict=True)}

    def _queued(self, place: int) -> int:
        return int(self._state.lists["length"][1 + records.QUEUE * len(self._layout.workers) + place])

    def _strictest(self, place: int) -> float:
        active = self._state.per_class["active"][place]
        kinds = [one.itl_s for one, count in zip(self._slo, active, strict=True) if count > 0]
        return min(kinds or [one.itl_s for one in self._slo])

    def _home(self, local: dict[str, float], candidates: set[int], task: dict[str, float]) -> int:
        """Return the decode worker that was described: the rule is not told its number."""
        for place in range(len(self._layout.prefill), len(self._layout.workers)):
            row, own = self._worker(place), self._layout.workers[place]
            if place in candidates:
                continue
            pieces = self._costs[own.pool].prefill_figures(own.degree)
            figures = (
                self._of(row, "queue_s"), self._of(row, "batch"), self._of(row, "context"),
                self._of(row, "kv_capacity") - self._held(row), float(self._queued(place)),
                prefill_seconds(pieces, task["history"], task["increment"]),
            )  # fmt: skip
            described = tuple(local[name] for name in ("queue_s", "batch", "context", "kv_free", "queued", "prefill_s"))
            if figures == described:
                return place
        raise AssertionError("no decode worker is as the simulator described it")

    def _decode(self, place: int, local: dict[str, float]) -> DecodeWorkerView:
        row, own = self._worker(place), self._layout.workers[place]
        decoding = int(self._state.totals["decoding"][0])
        windowed = local["windowed_itl"]
        return DecodeWorkerView(
            worker=f"w{place}",
            degree=own.degree,
            queue_s=self._of(row, "queue_s"),
            queued=self._queued(place),
            windowed_itl=None if math.isnan(windowed) else windowed,
            kv_used=_whole(self._held(row)),
            kv_capacity=_whole(self._of(row, "kv_capacity")),
            batch=int(self._of(row, "batch")),
            context=_whole(self._of(row, "context")),
            gap_sums=self._state.gap_sums[:decoding].tolist(),
            gap_counts=self._state.gap_counts[:decoding].tolist(),
            queue_tokens=self._of(row, "queue_tokens"),
            queue_work=self._of(row, "queue_work"),
            itl_slo=self._strictest(place),
            pool=own.pool,
        )

    # Which queued prefill runs next.

    def _order(self, answer: Callable[[], int]) -> int:
        state, queue = self._state, self._queue
        count = int(state.totals["choices"][0])
        seconds, enqueued, slo, postponed, lost = (
            column[:count].tolist()
            for column in (state.seconds, state.enqueued, state.ttft_slo, state.postponed, state.lost)
        )
        while queue.waiting:
            queue._take(0)
        for i in range(count):
            waiting = _Waiting(QueueEntry(0, 0, str(i)), False, _NOBODY)
            queue._put(waiting, seconds[i], enqueued[i], slo[i], lost[i], 0.0, "")
        for at, waiting in enumerate(queue._waiting):
            queue._postponed[at] = postponed[int(waiting.entry.id)]
        place = queue._next(ahead=False)
        assert place is not None
        mine = int(queue._waiting[place].entry.id)
        ids = [int(waiting.entry.id) for waiting in queue._waiting]
        counts = dict(zip(ids, queue._postponed, strict=True))
        code = answer()
        after = dict(enumerate(state.postponed[:count].tolist()))
        head: list[int] = []
        if queue._order.rearranges:
            head = state.head[: min(self._policy.window, count)].tolist()
        self._count(f"order {self._policy.order}", (mine, counts, ids[: len(head)]), (code, after, head))
        return code

    # Which worker a session is bound to.

    def _place(self, answer: Callable[[], int]) -> int:
        state = self._state
        count = int(state.totals["choices"][0])
        free, capacity, sessions, hits, load = (
            column[:count].tolist()
            for column in (state.kv_free, state.kv_capacity, state.bound, state.prefix_hit, state.load)
        )
        views = [
            BindingView(f"w{i:04}", capacity[i] - free[i], capacity[i], int(sessions[i]), load[i]) for i in range(count)
        ]
        found = self._binding.choose(
            views, needed_kv=state.totals["needed_kv"][0].item(), prefix_hit={f"w{i:04}": hits[i] for i in range(count)}
        )
        code = answer()
        self._count(f"bind {self._policy.binding}", found, None if code < 0 else f"w{code:04}")
        return code


def _figures(record: Any) -> dict[str, float]:
    return dict(zip(record.dtype.names, record.item(), strict=True))


def _whole(figure: float) -> int:
    if figure != int(figure):
        raise AssertionError(f"{figure!r} is no whole number of tokens")
    return int(figure)


def sample(seed: int, *, sessions: int, rate: float, classes: int) -> Sample:
    """Return sessions of up to six rounds, busy enough that queues form."""
    dice = np.random.default_rng(seed)
    arrivals = np.cumsum(dice.exponential(1 / rate, sessions))
    drawn = [
        (
            float(at),
            [
                (float(dice.integers(20, 2500)), float(dice.integers(2, 120)), float(dice.exponential(1.0)))
                for _ in range(int(dice.integers(1, 7)))
            ],
        )
        for at in arrivals
    ]
    return sample_of(drawn, kinds=[int(kind) for kind in dice.integers(0, classes, sessions)])


SLOS = (SloClass(1.5, 0.04), SloClass(4.0, 0.1, "batch"))


def layouts() -> list[tuple[Layout, dict[str, CostProfile]]]:
    """Return layouts of like and unlike workers, disaggregated, symmetric and hybrid."""
    costs = {"gpu": profile(kv=600_000), "slow": profile(kv=300_000, degrees=(1, 2))}
    two = (Worker(1), Worker(2))
    return [
        (Layout((Worker(1), Worker(1)), two), costs),
        (Layout((Worker(2), Worker(1, "slow"), Worker(1)), (Worker(1, "slow"), Worker(2))), costs),
        (Layout((), (Worker(1), Worker(1), Worker(2)), "symmetric"), costs),
        (Layout((Worker(1),), (Worker(1), Worker(1, both=True)), "hybrid"), costs),
    ]


def choices() -> Iterator[PolicyChoice]:
    """Yield every policy, every mode of ``weft`` in every reading of ITL, with every order and binding in turn."""
    orders, bindings = list(ORDERS), list(BINDINGS)
    number = 0
    for name in POLICIES:
        variants: list[tuple[str, dict[str, float]]] = [("", {})]
        if name == "weft":
            variants = [(mode, {"itl_statistic": float(s)}) for mode in MODES for s in range(3)]
        for mode, params in variants:
            for _ in range(2):
                yield PolicyChoice(
                    route=name, mode=mode, params=params, order=orders[number % len(orders)],
                    binding=bindings[number % len(bindings)],
                )  # fmt: skip
                number += 1


def replay(most: int, *, seed: int = 0) -> Tally:
    """Take ``most`` decisions of seeded runs over all policies and layouts."""
    tally = Tally()
    runs = [(choice, layout) for choice in choices() for layout in layouts()]
    turn = 0
    while tally.total < most:
        choice, (layout, costs) = runs[turn % len(runs)]
        share = (most - tally.total) // (len(runs) - turn) if turn < len(runs) else most - tally.total
        sessions = 40 + most // len(runs) // 4
        Replay(
            sample(seed + turn, sessions=sessions, rate=6.0 + turn % 3 * 6.0, classes=1 + turn % 2), layout, costs,
            choice, SLOS[: 1 + turn % 2], seed=turn, tally=tally, most=min(most, tally.total + max(1, share)),
        ).run()  # fmt: skip
        turn += 1
    return tally


def main() -> int:
    """Replay as many decisions as the first argument says, print what was taken, return 1 when one differs."""
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    began = time.process_time()
    tally = replay(most)
    seconds = time.process_time() - began
    lines = [f"{what:32}{count:8}" for what, count in sorted(tally.taken.items())]
    lines.append(f"{tally.total} decisions, {len(tally.differences)} differences, {seconds:.1f} CPU-s")
    sys.stdout.write("\n".join([*lines, *tally.differences[:20], ""]))
    return int(bool(tally.differences))


if __name__ == "__main__":
    sys.exit(main())
