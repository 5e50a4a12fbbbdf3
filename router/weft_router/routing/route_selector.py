"""Decide where each prefill of one decode worker runs: what is known of it, of this worker and of the others."""

import math
from time import monotonic
from typing import Final
from zlib import crc32

from weft_core.cost import CostProfileError
from weft_core.kv_tiers import t_load
from weft_core.parallelism import Degree, parallelism_of
from weft_core.policies.finish import may_recompute
from weft_core.policies.snapshot import NOTHING, Circumstances, Decision, DecodeWorkerView, PrefillTask
from weft_core.timing import wait_and_load
from weft_router.config import PLAIN_CLASS, RouterConfig
from weft_router.engines.adapter import Adapter
from weft_router.engines.load import EngineLoad
from weft_router.openai.tokens import AnswerTokens, nearest
from weft_router.routing.class_policies import ClassPolicies
from weft_router.routing.policy import RoutingPolicy
from weft_router.routing.prefill_workers import PrefillWorkers
from weft_router.sessions.round import Round
from weft_router.sessions.session import KvOrigin, PrefixMatch
from weft_router.state.registry import Registry
from weft_router.telemetry.decision_log import DecisionLog
from weft_router.telemetry.instruments import Buckets
from weft_router.telemetry.sliding_window import SlidingWindow
from weft_router.workers.worker import Worker

NOBODY = Circumstances()
FEW: Final = 8
GAPS_S: Final = 0.05
"""Beside more than FEW streams their gaps are looked at this often: one token moves the mean of none by much."""


class RouteSelector:
    """The routing decisions of one decode worker."""

    def __init__(
        self, worker: Worker, *, adapter: Adapter, prefill_workers: PrefillWorkers, registry: Registry,
        answers: AnswerTokens, itl: SlidingWindow, ring: DecisionLog, seconds: Buckets,
    ) -> None:  # fmt: skip
        settings = worker.settings
        config = settings.config
        self._worker = worker
        self._settings = settings
        self._name, self._degree = settings.worker, settings.degree
        self._places = _places(config, self._degree)
        self._bytes_per_token = settings.profile.kv_bytes_per_token
        self._tier_speeds = config.engine.tier_speeds()
        self._locally = adapter.can.local
        self._caching = adapter.can.prefix_cache
        self._prefill_workers = prefill_workers
        self._registry = registry
        self._answers = answers
        self._itl = itl
        self._ring = ring
        self._seconds = seconds
        self._sliced = config.routing.slices.mode == "auto" and adapter.can.slices
        self._counts_gaps = config.routing.params.get("itl_statistic", 0) > 0
        self._gaps_until = 0.0
        self._gap_sums: list[float] = []
        self._gap_counts: list[float] = []
        self._gaps_left: list[float] = []
        self._load: EngineLoad | None = None
        self._kv_used = self._kv_capacity = self._context = 0
        self._sessions = SlidingWindow(config.routing.stats_window_seconds)
        self._policies = ClassPolicies(
            config, profile=settings.profile, pools=settings.pools, salt=settings.worker, sliceable=self._sliced,
        )  # fmt: skip
        self._default = self._policies.of(PLAIN_CLASS)

    @property
    def never_remote(self) -> bool:
        """Return whether there are no prefill workers by design."""
        return self._default.never_remote

    def policy_of(self, class_: str) -> RoutingPolicy:
        """Return the policy of a session class."""
        return self._policies.of(class_)

    def reload(self, config: RouterConfig) -> None:
        """Take over another configuration's policies; rounds under way keep theirs."""
        settings = self._settings
        self._places = _places(config, self._degree)
        self._policies = ClassPolicies(
            config, profile=settings.profile, pools=settings.pools, salt=settings.worker, sliceable=self._sliced,
            before=self._policies,
        )  # fmt: skip
        self._default = self._policies.of(PLAIN_CLASS)
        self._counts_gaps = config.routing.params.get("itl_statistic", 0) > 0

    @property
    def trusted(self) -> bool:
        """Return whether predictions were right lately."""
        return self._policies.trusted

    def decide(self, rnd: Round) -> Decision:
        """Choose the route.

        A history that nobody can read is computed again elsewhere only where less of it is missing than new tokens
        came. Policies that read no history compute it again whatever the prefill worker's cache lacks.
        """
        now = monotonic()
        prefix_match = rnd.prefix_match
        if not prefix_match.later:
            self._sessions.add(now, 1.0)
        task = prefix_match.task
        policy = self._policies.of(rnd.class_)
        if policy.never_remote:
            known = Circumstances(load_s=self._load_s(prefix_match)) if prefix_match.below else NOBODY
            return policy.route(task, decode=self.view(now), prefill=(), known=known, now=now)
        here = ""
        readable = True
        near: list[str] | None = None
        below = min(task.read, task.history)
        cached = self._prefill_workers.cached(prefix_match.prefilled) if self._caching else NOTHING
        if not self._locally:
            task = PrefillTask(0, task.history + task.increment)
        elif not rnd.inference.transferable:
            here = "not-transferable"
        elif prefix_match.handle is None and task.history > 0:
            readable = False
            here_now = task.history - below  # what has to be loaded may be computed elsewhere in that time
            if policy.reads_history and here_now >= task.increment:
                near = [name for name in cached if may_recompute(here_now, task.increment, cached[name])]
                if not near:
                    here = "history-unreadable"
        known = Circumstances(
            now - rnd.started,
            prefix_match.later,
            self._answer_tokens(rnd.inference.max_tokens),
            self._rate(now) if policy.reads_rate else math.nan,
            rnd.scheduling.priority,
            cached,
            policy.slices and rnd.inference.kind != "responses" and not rnd.inference.media,
            readable,
            {worker: prompt.tokens for worker, prompt in prefix_match.prefilled.items()},
            crc32(rnd.session.encode()) / 2**32,
            self._worker.paths.rates,
            below,
            self._load_s(prefix_match),
        )
        if prefix_match.away:
            reader = self._prefill_workers.least_queued(set(), task, prefix_match.handle, adapter=rnd.inference.version)
            decision = Decision(remote=reader, reason="moved")
        else:
            prefill = () if here else self._prefill_workers.views(task, rnd.inference.version)
            if near is not None:
                prefill = tuple(view for view in prefill if view.worker in near)
                here = "" if prefill else "history-unreadable"
            decision = policy.route(task, decode=self.view(now), prefill=prefill, known=known, now=now)
            if prefix_match.origin is not None and rnd.inference.transferable:
                decision = self._by_origin(decision, prefix_match.origin, task, rnd)
        if here:
            decision = decision.because(here)
        elif decision.remote is None and not self._locally:
            decision = self._elsewhere(decision, task, rnd.inference.version)
        rnd.record = self._ring.add(now, rnd.session, rnd.class_, policy.name, self._name, task, decision, rnd.trace)
        ended = monotonic()
        self._seconds.observe(ended - now)
        if rnd.spans is not None:
            rnd.spans.decided(rnd.record, now, ended)
        return decision

    def _by_origin(self, decision: Decision, origin: KvOrigin, task: PrefillTask, rnd: Round) -> Decision:
        """Have the worker that the session left prefill the round, if that should be over sooner than by a decision."""
        record = self._prefill_workers.origin(origin.worker, adapter=rnd.inference.version)
        if record is None:
            return decision
        view, total = self._prefill_workers.in_flight.view(record), task.history + task.increment
        known = min(origin.tokens, total - 1)
        profile = self._settings.profile_of(record.pool)
        try:
            prefill_s = profile.t_pre(history=known, increment=total - known, degree=record.degree)
            read_s = profile.t_kv(total, source=record.degree, destination=self._degree)
        except CostProfileError:
            return decision
        ttft_s = monotonic() - rnd.started + wait_and_load(view.queue_s, origin.load_s)
        ttft_s += prefill_s * view.slowdown + read_s
        return decision if decision.ttft_s < ttft_s else Decision(record.worker, "moved", ttft_s=ttft_s)

    def _elsewhere(self, decision: Decision, task: PrefillTask, adapter: str) -> Decision:
        """Send a prefill that this engine cannot do by itself to the prefill worker with the shortest queue."""
        worker = self._prefill_workers.least_queued(set(), task, adapter=adapter)
        return decision if worker is None else Decision(remote=worker, reason="no-local-prefill")

    def observed(self, rnd: Round, ttft_s: float) -> None:
        """Learn how good a decision's prediction was: its round's first token came."""
        if rnd.record is not None:
            rnd.record.ttft = ttft_s
        decision = rnd.decision
        if decision is not None and not rnd.retried:
            self._policies.of(rnd.class_).observe(decision, ttft_s - rnd.delayed_s)

    def learned(self, rnd: Round, itl_s: float) -> None:
        """Learn what a decision's round took in all: ``itl_s`` is the mean gap of its answer."""
        decision, first = rnd.decision, rnd.first_at
        if decision is not None and not rnd.retried and first is not None:
            policy = self._policies.of(rnd.class_)
            if policy.learning is not None:
                policy.learn(decision, ttft_s=first - rnd.started, itl_s=itl_s)

    def view(self, now: float) -> DecodeWorkerView:
        """Return this worker; the sequences that decode are taken to be halfway through their answers."""
        worker = self._worker
        queue, decoding = worker.queue, worker.batch
        load = worker.engine.load
        if load is not self._load:  # the engine is asked once a second
            self._load = load
            self._kv_used, self._kv_capacity = worker.kv_used, worker.kv_capacity
        batch, queued = len(decoding), len(queue)
        if batch <= FEW or now >= self._gaps_until:
            self._gaps_until = now + GAPS_S
            members = decoding.members
            answer = self._answers.mean
            self._context = decoding.tokens + (nearest(batch * answer / 2) if answer == answer else 0)
            if self._counts_gaps:
                self._gap_sums = [float(member.latency.over) for member in members]
            else:
                self._gap_sums = [member.latency.seconds for member in members]
            self._gap_counts = [float(member.latency.gaps) for member in members]
            known = self.never_remote and answer == answer
            self._gaps_left = [member.gaps_left(answer) for member in members] if known else []
        return DecodeWorkerView(
            self._name, self._degree, queue.seconds if queued else 0.0, queued, self._itl.mean(now),
            self._kv_used, self._kv_capacity, batch, self._context, self._gap_sums, self._gap_counts, queue.tokens,
            queue.work, slowdown=queue.slowdown, places=self._places, gaps_left=self._gaps_left,
        )  # fmt: skip

    def delays(self, task: PrefillTask, seconds: float, running_s: float, urgency: float) -> bool:
        """Return whether a prefill that this engine could begin now waits for the sessions that decode here.

        The strictest ITL SLO of all classes counts. A round of an engine that is not healthy learns so at once.
        """
        if not self._worker.engine.healthy:
            return False
        view = self.view(monotonic())
        view.itl_slo = self._policies.strictest_itl_s
        return self._default.delays(task, seconds=seconds, running_s=running_s, urgency=urgency, decode=view)

    def _load_s(self, prefix_match: PrefixMatch) -> float:
        """Return the seconds in which the engine loads what tiers have of a round's history."""
        below = prefix_match.below
        return t_load(below, self._bytes_per_token, self._tier_speeds) if below else 0.0

    def _rate(self, now: float) -> float:
        """Return the new sessions per second of the whole service: as many as here at every decode worker."""
        return self._sessions.rate(now) * max(1, len(self._registry.ready("decode")))

    def _answer_tokens(self, most: int | None) -> float:
        """Return how long the answer may be: the mean answer so far, at most what the client allows."""
        mean = self._answers.mean
        return mean if most is None or mean <= most else float(most)


def _places(config: RouterConfig, degree: Degree) -> float:
    """Return how many sequences an engine decodes at most, on all its data-parallel ranks."""
    each = config.routing.places
    return math.inf if each is None else float(each * parallelism_of(degree).dp)
