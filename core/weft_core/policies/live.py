"""Ask a rule about a live snapshot: turn it into the vectors that every rule reads, and the answer into a Decision."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from weft_core.cost import CostProfile
from weft_core.policies.catalogue import MODES, POLICIES, REASONS, BindingName, ModeName, parameters
from weft_core.policies.codes import AMPD, LATENCY_COST, WEFT
from weft_core.policies.decide import decide
from weft_core.policies.earliest import Earliest, Lanes
from weft_core.policies.early_rejection import predicted_ttft
from weft_core.policies.features import LOCAL
from weft_core.policies.features import REMOTE_SIZE as SIZE
from weft_core.policies.finish import overlapped_finish
from weft_core.policies.fleet import Engine, Fleet, prefill_pieces
from weft_core.policies.hedge import NO_HEDGE, hedge
from weft_core.policies.parameter import PolicyError
from weft_core.policies.slices import Slicing, next_slice
from weft_core.policies.snapshot import (
    Alternative,
    Circumstances,
    Decision,
    DecodeWorkerView,
    PrefillTask,
    PrefillWorkerView,
)
from weft_core.policies.weft import IA, IMD, MODE, WHOLE_OR_CHUNKED, stall_cost, weigh
from weft_core.policies.weft import PARAMS as WEFT_PARAMS
from weft_core.slo import Slo
from weft_core.timing import prefill_seconds as seconds_of

ALONE = Circumstances()
_UNKNOWN: Final = math.nan
_NEVER: Final = math.inf

LIVE_MODES: tuple[ModeName, ...] = ("imd", "whole-or-chunked", "ia", "remote-jsq")
"""Modes of ``weft`` that the router runs; where a prompt cannot be sliced, ``imd`` decides as ``ia`` does."""
CHOSEN_MODES: tuple[ModeName, ...] = ("ia", "remote-jsq")
"""Modes that a plan takes by itself: live, they do what the simulator says. The others run where asked for."""
LIVE_MODE: ModeName = "ia"
LIVE_BINDINGS: tuple[BindingName, ...] = ("kv-headroom", "prefix-aware", "kv-aware", "least-requests", "round-robin")
"""Bindings that the router feeds."""

MOST_FLEETS = 256
"""Decode workers that one process asks for at most before it begins to forget; each takes some kilobytes."""

Vectors = tuple[tuple[float, ...], tuple[float, ...], list[float]]


def prefill_seconds(task: PrefillTask, *, degree: int, profile: CostProfile) -> float:
    """Return T_pre of a task, NaN when the profile does not know the degree."""
    pieces = prefill_pieces(profile, degree)
    return math.nan if pieces is None else seconds_of(pieces, task.history, task.increment)


def queue_seconds(queue: Iterable[PrefillTask], *, degree: int, profile: CostProfile) -> float:
    """Return the queuing term of AMPD's Eq. (1) and (2): sum of T_pre over a prefill queue; NaN without the degree."""
    return sum((prefill_seconds(task, degree=degree, profile=profile) for task in queue), 0.0)


class _Home:
    """One decode worker: what its engine takes, and the workers that may prefill for it."""

    __slots__ = ("_degree", "_pool", "_worker", "earliest", "engine", "fleet")

    def __init__(self, view: DecodeWorkerView, engine: Engine, fleet: Fleet, lanes: Lanes) -> None:
        self._worker = view.worker
        self._degree = view.degree
        self._pool = view.pool
        self.engine = engine
        self.fleet = fleet
        self.earliest = Earliest(fleet.kind, lanes)

    def is_of(self, view: DecodeWorkerView) -> bool:
        """Tell whether this is the worker that is seen."""
        return view.worker == self._worker and view.degree == self._degree and view.pool == self._pool


class Routing:
    """The routing rule of a service, with its parameters, cost profiles and SLO."""

    def __init__(
        self,
        policy: str,
        *,
        mode: str,
        overrides: Mapping[str, float],
        profile: CostProfile,
        slo: Slo,
        pools: Mapping[str, CostProfile] | None = None,
        slicing: Slicing | None = None,
        lanes: Lanes | None = None,
    ) -> None:
        """Look the rule up; ``profile`` is the decode worker's, ``pools`` has those of pools that differ from it.

        ``slicing`` None says that this engine's local prefills are never sliced. Rules that are asked about the same
        views may share ``lanes``.

        Raises:
            PolicyError: there is no such policy, mode or parameter, or a value is out of range.
        """
        self._params = parameters(policy, mode, overrides)
        self._code = code = POLICIES[policy].code
        self._profile = profile
        self._pools = pools or {}
        self._slo = slo
        self._ttft_slo, self._itl_slo = slo.ttft_s, slo.itl_s
        self._lanes = lanes or Lanes()
        self._homes: dict[tuple[str, int, str], _Home] = {}
        self._latest: _Home | None = None
        mode_code = MODES[mode] if code == WEFT else IA
        sliced = code == WEFT and mode_code in (IMD, WHOLE_OR_CHUNKED)
        self._slicing = slicing if sliced else None
        self.slices = self._slicing is not None
        """Whether the rule may have local prefills sliced."""
        self._unsliced = self._params
        if code == WEFT and mode_code == IMD:
            self._unsliced = (*self._params[:MODE], float(IA), *self._params[MODE + 1 :])
        # What no rule reads is not worked out: a decision is on every request's path.
        whole_local = code == WEFT and mode_code in (WHOLE_OR_CHUNKED, IA)
        self._reads_whole = whole_local or code == AMPD
        self._reads_step = whole_local or code == LATENCY_COST
        self._weighs_whole = code == WEFT and mode_code == IMD  # where it cannot slice
        self._reads_cached = code == LATENCY_COST
        self._reads_first = code == WEFT  # of the other workers, where these slice nothing

    @property
    def slo(self) -> Slo:
        """Return the SLO that it decides by."""
        return self._slo

    @property
    def params(self) -> tuple[float, ...]:
        """Return the rule's parameters."""
        return self._params

    def use(self, params: tuple[float, ...]) -> None:
        """Decide by other parameters from now on, such as a table that was learned; not for ``weft``, which has modes.

        Raises:
            PolicyError: there are too few or too many, or the rule is ``weft``.
        """
        if self._code == WEFT or len(params) != len(self._params):
            raise PolicyError(
                f"params: {len(params)} for a rule that takes {len(self._params)}; weft's stay as they are"
            )
        self._params = self._unsliced = params

    def decide(
        self,
        task: PrefillTask,
        *,
        decode: DecodeWorkerView,
        prefill: Sequence[PrefillWorkerView],
        order: Sequence[int] = (),
        uniform: float = 0.0,
        now: float = 0.0,
        known: Circumstances = ALONE,
    ) -> Decision:
        """Decide where a prefill runs.

        ``order`` is a random permutation of the prefill workers' places (none: as they come) and ``uniform`` a random
        number in [0, 1), both drawn by the caller; ``now`` is the clock of the views' ``used_at``. Where the profile
        lacks a figure that the rule needs, the shortest queue by number of tasks is taken (reason
        ``profile-incomplete``). The same views, as a tuple, are cheapest to decide over.
        """
        views = prefill if type(prefill) is tuple else tuple(prefill)
        sliced = self._slicing is not None and known.sliceable
        asked = Asked(self, task, decode, views, order, uniform, now, known)
        if self._reads_first:
            found = self._by_the_first(asked, task, decode, views, known, sliced)
            if found is not None:
                return found
        vectors = self._vectors(asked, sliced=sliced, all_of_it=False)
        choice, reason = self._ask(vectors, asked, sliced, [math.nan] * (len(views) + 1))
        waited = known.waited_s
        if choice != LOCAL:
            finish = overlapped_finish(vectors[2], choice * SIZE)
            return Decision(views[choice].worker, REASONS[reason], False, waited + finish, asked)
        name = REASONS[reason]
        chunked = sliced and name != "local-whole"
        local = vectors[1]
        if chunked:
            finish = local[2] + local[3]
        else:
            whole = local[1]
            if whole != whole:
                whole = self._home(decode).engine.whole(task.history, task.increment)
            finish = local[0] + whole
        return Decision(None, name, chunked, waited + finish, asked)

    def _by_the_first(
        self, asked: "Asked", task: PrefillTask, decode: DecodeWorkerView, views: tuple[PrefillWorkerView, ...],
        known: Circumstances, sliced: bool,
    ) -> Decision | None:  # fmt: skip
        """Decide by ``weft``, to which only the first to finish matters. None: each worker has to be looked at.

        That is where a figure is missing, or where other workers would slice, too, each beside its own batch.
        """
        home = self._home(decode)
        earliest, engine = home.earliest, home.engine
        history, increment = task.history, task.increment
        found = earliest.of(history, increment, views) if known.readable else earliest.of(0, history + increment, views)
        if found is None:
            return None
        best, finish = found
        waited, queue, batch, context = known.waited_s, decode.queue_s, decode.batch, decode.context
        whole, chunked, params = _UNKNOWN, _NEVER, self._unsliced
        if sliced:
            if views and earliest.decodes:
                return None
            params = self._params
            itl = decode.itl_slo if decode.itl_slo == decode.itl_slo else self._itl_slo
            chunked = engine.chunked_queue(batch, context, decode.queue_tokens, decode.queue_work, itl)
            chunked += engine.chunked(batch, context, history, increment, itl)
        if self._reads_whole or (self._weighs_whole and not sliced):
            whole = engine.whole(history, increment)
        choice, reason, _, _ = weigh(
            best, finish, False, waited, self._ttft_slo, self._itl_slo, chunked, queue, whole,
            engine.step(batch, context), params, decode.gap_sums, decode.gap_counts,
        )  # fmt: skip
        name = REASONS[reason]
        if choice != LOCAL:
            return Decision(views[choice].worker, name, False, waited + finish, asked)
        if sliced and name != "local-whole":
            return Decision(None, name, True, waited + chunked, asked)
        if whole != whole:
            whole = engine.whole(history, increment)
        return Decision(None, name, False, waited + (queue + whole), asked)

    def next_slice(self, *, at: int, remaining: int, decode: DecodeWorkerView) -> int | None:
        """Return how many tokens after the first ``at`` the next slice has; None: the rest goes with the request."""
        slicing, engine = self._slicing, self._home(decode).engine
        if slicing is None or not engine.steps:
            return None
        itl = decode.itl_slo if decode.itl_slo == decode.itl_slo else self._itl_slo
        batch = float(decode.batch)
        tokens = next_slice(
            engine.steps, batch, float(decode.context), at, remaining, slicing.limit(itl, batch), slicing.most,
            engine.least, slicing.block,
        )  # fmt: skip
        return None if tokens >= remaining else tokens

    def _ask(self, vectors: Vectors, asked: "Asked", sliced: bool, costs: list[float]) -> tuple[int, int]:
        task, local, remote = vectors
        decode = asked.decode
        return decide(
            self._code, task, local, remote, len(asked.prefill), asked.order or range(len(asked.prefill)),
            self._params if sliced else self._unsliced, decode.gap_sums, decode.gap_counts, costs,
        )  # fmt: skip

    def _vectors(self, asked: "Asked", *, sliced: bool, all_of_it: bool) -> Vectors:
        """Return task, local and remote figures; ``all_of_it`` also those that the rule does not read."""
        task, decode, known = asked.task, asked.decode, asked.known
        home = self._home(decode)
        engine, history, increment = home.engine, task.history, task.increment
        of_task = asked.figures()
        batch, context = decode.batch, decode.context
        step = whole = math.nan
        queue = chunked = math.inf
        weighs = all_of_it or (self._weighs_whole and not sliced)
        if self._reads_step or weighs:
            step = engine.step(batch, context)
        if self._reads_whole or weighs:
            whole = engine.whole(history, increment)
        if sliced:
            itl = decode.itl_slo if decode.itl_slo == decode.itl_slo else self._itl_slo
            queue = engine.chunked_queue(batch, context, decode.queue_tokens, decode.queue_work, itl)
            chunked = engine.chunked(batch, context, history, increment, itl)
        windowed = decode.windowed_itl
        here = (
            decode.queue_s, whole, queue, chunked, math.nan if windowed is None else windowed, batch, context, step,
            decode.kv_capacity - decode.kv_used, decode.queued,
        )  # fmt: skip
        cached = known.cached if self._reads_cached else None
        there = task if known.readable else PrefillTask(0, history + increment)
        rows = home.fleet.write(there, asked.prefill, sliced=sliced, cached=cached, now=asked.now, exact=all_of_it)
        return of_task, here, rows

    def _home(self, decode: DecodeWorkerView) -> _Home:
        latest = self._latest
        if latest is not None and latest.is_of(decode):  # a router asks for one worker alone
            return latest
        key = decode.worker, decode.degree, decode.pool
        home = self._homes.get(key)
        if home is None:
            if len(self._homes) >= MOST_FLEETS:
                self._homes.clear()
            profile = self._pools.get(decode.pool, self._profile)
            engine = Engine(profile, decode.degree, self._slicing)
            fleet = Fleet(
                profile, decode.degree, engine, pools=self._pools, fallback=self._profile, slicing=self._slicing,
                itl_slo=self._itl_slo,
            )  # fmt: skip
            home = self._homes[key] = _Home(decode, engine, fleet, self._lanes)
        self._latest = home
        return home


@dataclass(slots=True)
class Asked:
    """What a decision was made from, so that it can be explained when somebody asks."""

    routing: Routing
    task: PrefillTask
    decode: DecodeWorkerView
    prefill: tuple[PrefillWorkerView, ...]
    order: Sequence[int]
    uniform: float
    now: float
    known: Circumstances

    def costs(self) -> Mapping[str, float]:
        """Return what the rule estimated for each option."""
        _, costs = self._again()
        names = ("local", *(view.worker for view in self.prefill))
        return {name: cost for name, cost in zip(names, costs, strict=True) if cost == cost}

    def alternatives(self) -> tuple[Alternative, ...]:
        """Return every option with its predicted TTFT, its price for others' ITL, and the rule's own cost."""
        (_, local, remote), costs = self._again()
        routing, waited = self.routing, self.known.waited_s
        params = routing._params if routing._code == WEFT else WEFT_PARAMS
        rise = stall_cost(
            local[1], local[7], routing.slo.itl_s, params, self.decode.gap_sums, self.decode.gap_counts
        )  # fmt: skip
        found = [Alternative("local", waited + local[0] + local[1], rise, costs[0])]
        if local[3] < math.inf:
            found.append(Alternative("local-chunked", waited + local[2] + local[3], 0.0, costs[0]))
        for i, view in enumerate(self.prefill):
            found.append(Alternative(view.worker, waited + overlapped_finish(remote, i * SIZE), 0.0, costs[1 + i]))
        return tuple(found)

    def figures(self) -> tuple[float, ...]:
        """Return the task as rules read it."""
        slo, known = self.routing.slo, self.known
        return (
            self.task.history, self.task.increment, known.waited_s, slo.ttft_s, slo.itl_s, 1.0 if known.later else 0.0,
            known.answer, known.rate, self.uniform, known.priority,
        )  # fmt: skip

    def hedge(self, choice: str | None, params: Sequence[float]) -> str | None:
        """Return the option to race against the choice ("local" or a worker), None for none."""
        (task, local, remote), _ = self._again()
        place = next((i for i, view in enumerate(self.prefill) if view.worker == choice), LOCAL)
        second = hedge(place, task, local, remote, len(self.prefill), params)
        if second == NO_HEDGE:
            return None
        return "local" if second == LOCAL else self.prefill[second].worker

    def best_ttft(self) -> float:
        """Return the least TTFT that any option promises."""
        (task, local, remote), _ = self._again()
        return predicted_ttft(task, local, remote, len(self.prefill))

    def _again(self) -> tuple[Vectors, list[float]]:
        routing = self.routing
        sliced = routing._slicing is not None and self.known.sliceable
        vectors = routing._vectors(self, sliced=sliced, all_of_it=True)
        costs = [math.nan] * (len(self.prefill) + 1)
        routing._ask(vectors, self, sliced, costs)
        return vectors, costs
