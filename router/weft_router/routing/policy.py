"""Ask the service's policy where a prefill shall run, with the freshest picture this process has."""

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Literal, NamedTuple

from weft_core.cost import CostProfile
from weft_core.policies.live import UNCORRECTED, Routing
from weft_core.policies.ppd_learning import PpdLearning
from weft_core.policies.qos.early_rejection import retry_after, retry_after_answers
from weft_core.policies.qos.local_only import prefill_workers_busy
from weft_core.policies.registry import POLICIES
from weft_core.policies.routing.ppd import cell
from weft_core.policies.slices import Slicing
from weft_core.policies.snapshot import Circumstances, Decision, DecodeWorkerView, PrefillTask, PrefillWorkerView
from weft_core.policies.trust import Trust
from weft_core.slo import Slo
from weft_router.config import RoutingConfig

log = logging.getLogger(__name__)

EXPLORE = 0.02
"""One in fifty: a cell with a round a second knows both sides within a minute."""


@dataclass(frozen=True, slots=True)
class ClassRules:
    """What a class of requests may expect beside the routing rule.

    ``tolerance`` is the share of the SLO above which a predicted TTFT or ITL is refused, None for never; ``local_only``
    keeps prefills off prefill workers: never, while these hold ``busy`` tasks each, or always.
    """

    priority: int = 0
    tolerance: float | None = None
    local_only: Literal["off", "pressure", "always"] = "off"
    busy: float = 4.0


PLAIN = ClassRules()


class EarlyRejection(NamedTuple):
    """A refusal before a round begins: its reason, and after how many seconds to try again."""

    reason: Literal["predicted-ttft", "predicted-itl"]
    retry_s: float


class RoutingPolicy:
    """The routing rule of a service or of one of its classes, fed by this process's clock and dice."""

    def __init__(
        self,
        routing: RoutingConfig,
        *,
        profile: CostProfile,
        slo: Slo,
        salt: str,
        pools: Mapping[str, CostProfile] | None = None,
        slicing: Slicing | None = None,
        step_tokens: int | None = None,
        rules: ClassRules = PLAIN,
        trust: Trust | None = None,
        before: "RoutingPolicy | None" = None,
        explore: float = EXPLORE,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Build the rule; ``slicing`` None: this engine's prefills run whole. ``trust`` takes over what was learned.

        ``before`` is the policy that this one follows: a table that ``ppd`` learned goes on where it began the same.
        ``explore`` is the share of later rounds that ``ppd`` sends where its table would not, to learn of both sides.
        """
        self.name = name = routing.policy
        """The configured policy's name."""
        self.never_remote = name == "colocated"
        """Whether there are no prefill workers by design."""
        self.reads_rate = POLICIES[name].reads_rate
        """Whether the rule looks at the rounds per second of the whole service."""
        self.reads_history = POLICIES[name].reads_history
        """Whether prefill workers may read the session's KV from its decode worker."""
        self._rule = Routing(
            name, mode=routing.mode, overrides=routing.overrides, profile=profile, slo=slo, pools=pools,
            slicing=slicing, step_tokens=step_tokens,
        )  # fmt: skip
        self._fallback = Routing("remote-jsq", mode="ia", overrides={}, profile=profile, slo=slo, pools=pools)
        self._slo = slo
        self._rules = rules
        self._keeps_home = rules.local_only != "off"
        self._risk = routing.hedge.risk
        self._races = routing.hedge.mode == "auto" and rules.priority >= routing.hedge.top
        self.trust = trust or Trust(ttft_slo=slo.ttft_s)
        self._believed = True
        self._clock = clock
        self._rng = random.Random(f"{routing.seed}:{salt}")  # noqa: S311 - spreads load, guards nothing
        self.slices = self._rule.slices
        """Whether local prefills may run in slices."""
        self.learning = PpdLearning(self._rule.params) if name == "ppd" else None
        """What ``ppd`` has learned; None for other policies."""
        known = before.learning if before is not None else None
        if self.learning is not None and known is not None and known.table == self.learning.table:
            self.learning = known
            self._rule.use(known.params)
        self._explore = explore
        self._policy = POLICIES[name]
        self._corrects = self._policy.predicts and routing.prediction_correction == "auto"
        self._warned = False

    @property
    def trusted(self) -> bool:
        """Return whether predictions were right lately; while they are wrong, decisions go by corrected ones."""
        return self.trust.trusted(self._clock())

    def route(
        self,
        task: PrefillTask,
        *,
        decode: DecodeWorkerView,
        prefill: Sequence[PrefillWorkerView],
        known: Circumstances,
        now: float | None = None,
    ) -> Decision:
        """Decide where a prefill runs; by corrected predictions when these were wrong lately.

        ``now`` is the clock's time, where the caller has just asked it.
        """
        if not prefill:
            decision = self._rule.decide(task, decode=decode, prefill=(), known=known)
            return decision if self.never_remote else decision.because("no-prefill-worker")
        if self._keeps_home and (self._rules.local_only == "always" or self._under_pressure(prefill)):
            return self._rule.decide(task, decode=decode, prefill=(), known=known).because("degraded")
        if now is None:
            now = self._clock()
        correction = UNCORRECTED
        wrong = self._corrects and not self.trust.trusted(now)
        if wrong:
            self._doubt(now)
            correction = self.trust.correction("local", now), self.trust.correction("remote", now)
        elif not self._believed:
            self._believed = True
            log.info("predictions_right_again", extra={"policy": self.name})
        decision = self._rule.decide(
            task,
            decode=decode,
            prefill=prefill,
            order=self._order(len(prefill)) if self._policy.reads_order else (),
            uniform=self._rng.random() if self._policy.reads_uniform else 0.0,
            now=now,
            known=known,
            correction=correction,
        )
        if wrong:
            return decision.because("predictions-wrong")
        if self.learning is not None and decision.reason == "table" and self._rng.random() < self._explore:
            return self._other_way(decision, task, decode=decode, prefill=prefill, now=now, known=known)
        if decision.reason == "profile-incomplete" and not self._warned:
            self._warned = True
            log.warning("profile_incomplete", extra={"policy": self.name})
        return decision

    def next_slice(self, *, at: int, remaining: int, decode: DecodeWorkerView) -> int | None:
        """Return how many tokens after the first ``at`` the next slice has; None: the rest goes with the request."""
        return self._rule.next_slice(at=at, remaining=remaining, decode=decode)

    def delays(
        self, task: PrefillTask, *, seconds: float, running_s: float, urgency: float, decode: DecodeWorkerView
    ) -> bool:
        """Return whether a local prefill, predicted to take ``seconds``, waits for the sessions beside it."""
        return self._rule.delays(task, seconds=seconds, running_s=running_s, urgency=urgency, decode=decode)

    def observe(self, decision: Decision, ttft_s: float) -> None:
        """Learn how long a round that ran as decided took to its first token, from the round's arrival."""
        kind = "local" if decision.remote is None else "remote"
        self.trust.note(kind, predicted=decision.uncorrected_s, observed=ttft_s, now=self._clock())

    def learn(self, decision: Decision, *, ttft_s: float, itl_s: float) -> None:
        """Learn what a round that ran as decided took in all: ``itl_s`` is its mean gap, NaN without one.

        Only ``ppd`` learns from it: its table follows what is observed.
        """
        learning, evidence = self.learning, decision.evidence
        if learning is None or evidence is None:
            return
        task = evidence.figures()
        if task.round < 1:
            return
        learning.note(cell(task, self._rule.params), local=decision.remote is None, ttft_s=ttft_s, tpot_s=itl_s)
        self._rule.use(learning.params)

    def refuse(self, decision: Decision) -> EarlyRejection | None:
        """Return why to refuse a round now and when to try again: no option promises its TTFT, or its ITL; else None.

        Predictions that are missing, or were wrong lately, refuse nobody.
        """
        tolerance, evidence = self._rules.tolerance, decision.evidence
        if tolerance is None or evidence is None or not self.trusted:
            return None
        limit = tolerance * self._slo.ttft_s
        if decision.ttft_s > limit:
            retry_s = retry_after(evidence.best_ttft(), limit)
            if retry_s is not None:
                return EarlyRejection("predicted-ttft", retry_s)
        answer, batch = evidence.answers()
        retry_s = retry_after_answers(evidence.itl_s(), tolerance * self._slo.itl_s, answer=answer, batch=batch)
        return None if retry_s is None else EarlyRejection("predicted-itl", retry_s)

    def hedge(self, decision: Decision, *, only_local: bool) -> str | None:
        """Return a second place for a prefill of the top class that may be late: "local", a worker, or None.

        ``only_local``: the session's KV can be read once, so no second worker can be given it.
        """
        if not self._races or decision.evidence is None:
            return None
        if not decision.ttft_s > self._risk * self._slo.ttft_s:
            return None
        return decision.evidence.hedge(decision.remote, self._risk, only_local=only_local)

    def _other_way(
        self, decision: Decision, task: PrefillTask, *, decode: DecodeWorkerView,
        prefill: Sequence[PrefillWorkerView], now: float, known: Circumstances,
    ) -> Decision:  # fmt: skip
        """Return the side that the table did not choose (reason ``share``)."""
        others = prefill if decision.remote is None else ()
        other = self._fallback.decide(task, decode=decode, prefill=others, now=now, known=known)
        return other.because("share")

    def _under_pressure(self, prefill: Sequence[PrefillWorkerView]) -> bool:
        return prefill_workers_busy(sum(view.queued for view in prefill), len(prefill), self._rules.busy)

    def _doubt(self, now: float) -> None:
        if self._believed:
            self._believed = False
            log.warning(
                "predictions_wrong",
                extra={
                    "policy": self.name,
                    "local_error": round(self.trust.error("local", now), 2),
                    "remote_error": round(self.trust.error("remote", now), 2),
                },
            )

    def _order(self, workers: int) -> Sequence[int]:
        """Return a random order of the workers for the rules that want one."""
        order = list(range(workers))
        self._rng.shuffle(order)
        return order
