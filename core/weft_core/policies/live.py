"""Ask a routing policy about a live snapshot: fill the figures it reads, and turn its answer into a Decision."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from weft_core.cost import CostProfile
from weft_core.parallelism import Degree
from weft_core.policies.estimates import EngineEstimate, RemoteEstimates
from weft_core.policies.finish import overlapped_finish
from weft_core.policies.inputs import LOCAL, LocalFigures, RemoteFigures, RoutingInputs, TaskFigures
from weft_core.policies.policy import PolicyError
from weft_core.policies.qos.early_rejection import predicted_ttft
from weft_core.policies.qos.hedge import NO_HEDGE, hedge
from weft_core.policies.registry import MODES, POLICIES, REASONS, parameters
from weft_core.policies.routing import weft
from weft_core.policies.routing.colocated import ITL_STATISTIC, delays_prefill
from weft_core.policies.routing.colocated import POLICY as COLOCATED_POLICY
from weft_core.policies.slices import Slicing, next_slice
from weft_core.policies.snapshot import (
    Circumstances,
    Decision,
    DecodeWorkerView,
    PrefillTask,
    PrefillWorkerView,
    RoutingOption,
)
from weft_core.slo import Slo
from weft_core.timing import place_wait_seconds, wait_and_load

ALONE = Circumstances()
UNCORRECTED: Final = (1.0, 1.0)
"""What predictions of local and of remote prefills are multiplied by."""


class _Home:
    """What a decode worker's engine takes, and the workers that may prefill for it."""

    __slots__ = ("engine", "remote")

    def __init__(self, engine: EngineEstimate, remote: RemoteEstimates) -> None:
        self.engine = engine
        self.remote = remote


class Routing:
    """The routing policy of a service, with its parameters, cost profiles and SLO."""

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
        step_tokens: int | None = None,
    ) -> None:
        """Look the policy up; ``profile`` is the decode worker's, ``pools`` has those of pools that differ from it.

        ``slicing`` None says that this engine's local prefills are never sliced. ``step_tokens`` are the most
        tokens that the engine takes into a step, None where that is not known.

        Raises:
            PolicyError: there is no such policy, mode or parameter, or a value is out of range.
        """
        self.params = parameters(policy, mode, overrides)
        """The policy's parameters."""
        self.policy = POLICIES[policy]
        self.slo = slo
        """The SLO that it decides by."""
        self._profile = profile
        self._pools = pools or {}
        self._homes: dict[tuple[Degree, str], _Home] = {}
        self._step_tokens = step_tokens
        self._has_modes = policy == "weft"
        mode_code = MODES[mode] if self._has_modes else weft.IA
        self._slicing = slicing if mode_code in (weft.IMD, weft.WHOLE_OR_CHUNKED) else None
        self.slices = self._slicing is not None
        """Whether the policy may have local prefills sliced."""
        self._unsliced = self.params
        if mode_code == weft.IMD:  # where a prompt cannot be sliced it decides as ``ia`` does
            self._unsliced = (*self.params[: weft.MODE], float(weft.IA), *self.params[weft.MODE + 1 :])

    def use(self, params: tuple[float, ...]) -> None:
        """Decide by other parameters from now on, such as a table that was learned; not for ``weft``, which has modes.

        Raises:
            PolicyError: there are too few or too many, or the policy is ``weft``.
        """
        if self._has_modes or len(params) != len(self.params):
            raise PolicyError(
                f"params: {len(params)} for a rule that takes {len(self.params)}; weft's stay as they are"
            )
        self.params = self._unsliced = params

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
        correction: tuple[float, float] = UNCORRECTED,
    ) -> Decision:
        """Decide where a prefill runs.

        ``order`` is a random permutation of the prefill workers' places (none: as they come) and ``uniform`` a random
        number in [0, 1), both drawn by the caller; ``now`` is the clock of the views' ``used_at``. Where the profile
        lacks a figure that the policy needs, the shortest queue by number of tasks is taken (reason
        ``profile-incomplete``). The same views, as a tuple, are cheapest to decide over. ``correction`` multiplies the
        predicted seconds of local and of remote prefills.
        """
        views = tuple(prefill)  # a tuple stays the same object: estimates are kept as long as it does
        evidence = RoutingEvidence(self, task, decode, views, order, uniform, now, known, correction)
        sliced = self._slicing is not None and known.sliceable
        inputs = self.inputs(evidence)
        choice, number = self.policy.route(inputs)
        reason, waited = REASONS[number], known.waited_s
        if choice != LOCAL:
            finish = overlapped_finish(inputs.remote[choice])
            raw = waited + finish / correction[1]
            return Decision(views[choice].worker, reason, False, waited + finish, evidence, raw)
        local = inputs.local
        chunked = sliced and reason != "local-whole"
        finish = local.chunked_queue_s + local.chunked_s if chunked else local.queue_s + local.prefill_s
        return Decision(None, reason, chunked, waited + finish, evidence, waited + finish / correction[0])

    def next_slice(self, *, at: int, remaining: int, decode: DecodeWorkerView) -> int | None:
        """Return how many tokens after the first ``at`` the next slice has; None: the rest goes with the request."""
        slicing, engine = self._slicing, self._home(decode).engine
        if slicing is None or not engine.steps:
            return None
        batch = float(decode.batch)
        limit = slicing.limit(self._itl_slo(decode), batch) / decode.slowdown
        tokens = next_slice(
            engine.steps, batch, float(decode.context), at, remaining, limit, slicing.most, engine.least, slicing.block,
        )  # fmt: skip
        return None if tokens >= remaining else tokens

    def delays(
        self, task: PrefillTask, *, seconds: float, running_s: float, urgency: float, decode: DecodeWorkerView
    ) -> bool:
        """Return whether a local prefill, predicted to take ``seconds``, waits for the sessions that decode beside it.

        Prefills that take ``running_s`` are being computed: their stall is in no gap yet. ``urgency`` is that of
        ``delays_prefill``. Only ``colocated`` delays prefills, and only while the profile predicts the engine's steps.
        """
        engine = self._home(decode).engine
        if self.policy is not COLOCATED_POLICY or not decode.gaps_left or not engine.steps:
            return False
        chunks = max(1.0, task.increment / self._step_tokens) if self._step_tokens is not None else 1.0
        step = engine.step(float(decode.batch), float(decode.context)) * decode.slowdown
        sums = decode.gap_sums
        if running_s > 0 and self.params[ITL_STATISTIC] == weft.MEAN:
            sums = [seen + running_s for seen in sums]
        return delays_prefill(
            urgency, seconds, chunks, step, self._itl_slo(decode), self.params, sums, decode.gap_counts,
            decode.gaps_left,
        )  # fmt: skip

    def step_with(self, task: PrefillTask, decode: DecodeWorkerView) -> float:
        """Return the seconds of a decode step with a further sequence, whose prompt a task completes."""
        batch, context = float(decode.batch + 1), float(decode.context + task.history + task.increment)
        return self._home(decode).engine.step(batch, context) * decode.slowdown

    def inputs(self, evidence: "RoutingEvidence") -> RoutingInputs:
        """Return what the policy reads."""
        decode, known, views = evidence.decode, evidence.known, evidence.prefill
        home = self._home(decode)
        sliced = self._slicing is not None and known.sliceable
        local = self._local(evidence, home.engine, sliced)
        remote = home.remote.figures(
            evidence.task,
            views,
            cached=known.cached,
            sent=known.sent,
            readable=known.readable,
            link_rates=known.link_rates,
            below=known.below,
            load_s=known.load_s,
        )
        if evidence.correction != UNCORRECTED:
            local, remote = _corrected(local, remote, evidence.correction)
        return RoutingInputs(
            evidence.figures(),
            local,
            remote,
            evidence.order or range(len(views)),
            self.params if sliced else self._unsliced,
            decode.gap_sums,
            decode.gap_counts,
            [math.nan] * (len(views) + 1),
        )

    def _local(self, evidence: "RoutingEvidence", engine: EngineEstimate, sliced: bool) -> LocalFigures:
        task, decode = evidence.task, evidence.decode
        batch, context = float(decode.batch), float(decode.context)
        step = engine.step(batch, context)
        taken, running = batch + decode.queued, min(batch, decode.places)
        wait = decode.slowdown * place_wait_seconds(decode.places, taken, running, evidence.known.answer, step)
        load = evidence.known.load_s
        queue = chunked = math.inf
        if sliced:
            itl = self._itl_slo(decode)
            queue = engine.chunked_queue(batch, context, decode.queue_tokens, decode.queue_work, itl, decode.slowdown)
            queue = wait_and_load(queue + wait, load)
            chunked = engine.chunked(batch, context, task.history, task.increment, itl, decode.slowdown)
        return LocalFigures(
            wait_and_load(engine.queue(decode.queue_s) + wait, load),
            engine.prefill(task.history, task.increment) * decode.slowdown, queue, chunked,
            math.nan if decode.windowed_itl is None else decode.windowed_itl, batch, context,
            step, decode.kv_capacity - decode.kv_used, decode.queued,
        )  # fmt: skip

    def _itl_slo(self, decode: DecodeWorkerView) -> float:
        return decode.itl_slo if decode.itl_slo == decode.itl_slo else self.slo.itl_s

    def _home(self, decode: DecodeWorkerView) -> _Home:
        key = decode.degree, decode.pool
        home = self._homes.get(key)
        if home is None:
            profile = self._pools.get(decode.pool, self._profile)
            home = self._homes[key] = _Home(
                EngineEstimate(profile, decode.degree, self._slicing),
                RemoteEstimates(profile, decode.degree, pools=self._pools, fallback=self._profile),
            )
        return home


def _corrected(
    local: LocalFigures, remote: Sequence[RemoteFigures], correction: tuple[float, float]
) -> tuple[LocalFigures, list[RemoteFigures]]:
    """Return figures whose finishes are so many times as late; a local T_pre stays, for others stall so long."""
    here, there = correction
    finish = here * (local.queue_s + local.prefill_s)
    return (
        replace(
            local,
            queue_s=finish - local.prefill_s,
            chunked_queue_s=here * local.chunked_queue_s,
            chunked_s=here * local.chunked_s,
        ),
        [
            replace(
                one,
                queue_s=there * one.queue_s,
                prefill_s=there * one.prefill_s,
                read_s=there * one.read_s,
                back_s=there * one.back_s,
            )
            for one in remote
        ],
    )


@dataclass(slots=True)
class RoutingEvidence:
    """What a decision was made from, so that it can be explained on demand."""

    routing: Routing
    task: PrefillTask
    decode: DecodeWorkerView
    prefill: tuple[PrefillWorkerView, ...]
    order: Sequence[int]
    uniform: float
    now: float
    known: Circumstances
    correction: tuple[float, float] = UNCORRECTED

    def figures(self) -> TaskFigures:
        """Return the task as policies read it."""
        slo, known = self.routing.slo, self.known
        return TaskFigures(
            self.task.history, self.task.increment, known.waited_s, slo.ttft_s, slo.itl_s, 1.0 if known.later else 0.0,
            known.answer, known.rate, self.uniform, known.priority, self.now, known.session,
        )  # fmt: skip

    def costs(self) -> Mapping[str, float]:
        """Return what the policy estimated for each option."""
        names = ("local", *(view.worker for view in self.prefill))
        return {name: cost for name, cost in zip(names, self._decided().costs, strict=True) if cost == cost}

    def alternatives(self) -> tuple[RoutingOption, ...]:
        """Return every option with its predicted TTFT, its price for others' ITL, and the policy's own cost."""
        inputs = self._decided()
        routing, waited, local, costs = self.routing, self.known.waited_s, inputs.local, inputs.costs
        params = routing.params if routing.policy.name == "weft" else weft.POLICY.params
        rise = weft.stall_cost(
            local.prefill_s, local.step_s, routing.slo.itl_s, params, inputs.gap_sums, inputs.gap_counts
        )
        found = [RoutingOption("local", waited + local.queue_s + local.prefill_s, rise, costs[0])]
        if local.chunked_s < math.inf:
            found.append(
                RoutingOption("local-chunked", waited + local.chunked_queue_s + local.chunked_s, 0.0, costs[0])
            )
        for view, figures, cost in zip(self.prefill, inputs.remote, costs[1:], strict=True):
            rise = 0.0
            if view.batch:
                rise = view.batch * weft.session_stall_cost(inputs._replace(params=params), figures.prefill_s)
            found.append(RoutingOption(view.worker, waited + overlapped_finish(figures), rise, cost))
        return tuple(found)

    def hedge(self, choice: str | None, risk: float, *, only_local: bool) -> str | None:
        """Return the option to race against the choice ("local" or a worker), None for none."""
        place = next((i for i, view in enumerate(self.prefill) if view.worker == choice), LOCAL)
        second = hedge(place, self._inputs(), risk, only_local=only_local)
        if second == NO_HEDGE:
            return None
        return "local" if second == LOCAL else self.prefill[second].worker

    def best_ttft(self) -> float:
        """Return the least TTFT that any option promises."""
        return predicted_ttft(self._inputs())

    def itl_s(self) -> float:
        """Return the decode worker's predicted step with this round in its batch."""
        return self.routing.step_with(self.task, self.decode)

    def answers(self) -> tuple[float, int]:
        """Return the expected tokens of an answer, and how many answers the decode worker decodes."""
        return self.known.answer, self.decode.batch

    def _inputs(self) -> RoutingInputs:
        return self.routing.inputs(self)

    def _decided(self) -> RoutingInputs:
        """Return what the policy read, with the costs that it wrote."""
        inputs = self._inputs()
        self.routing.policy.route(inputs)
        return inputs
