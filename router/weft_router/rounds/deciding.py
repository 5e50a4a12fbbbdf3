"""Decide where each prefill of one decode worker runs: what is known of it, of this worker and of the others."""

from collections.abc import Sequence
from time import monotonic

from weft_core.policies.snapshot import Circumstances, Decision, DecodeWorkerView, PrefillTask
from weft_router.config import PLAIN_CLASS, RouterConfig
from weft_router.engines.adapter import Adapter
from weft_router.rounds.accounts import Accounts
from weft_router.rounds.answering import Answering
from weft_router.rounds.policies import Policies
from weft_router.rounds.remote import RemotePrefill
from weft_router.rounds.round import Round
from weft_router.rounds.routing import Policy
from weft_router.rounds.worker import Worker
from weft_router.signals.decisions import Decisions
from weft_router.signals.instruments import Buckets
from weft_router.signals.window import Window
from weft_router.state.registry import Registry

NOBODY = Circumstances()
FEW = 32
GAPS_S = 0.05
"""Beside more than FEW streams their gaps are looked at this often: one token moves the mean of none by much."""


class Deciding:
    """The routing decisions of one decode worker."""

    def __init__(
        self, worker: Worker, *, adapter: Adapter, remote: RemotePrefill, registry: Registry, accounts: Accounts,
        answering: Answering, itl: Window, ring: Decisions, seconds: Buckets,
    ) -> None:  # fmt: skip
        settings = worker.settings
        config = settings.config
        self._worker = worker
        self._settings = settings
        self._adapter = adapter
        self._remote = remote
        self._registry = registry
        self._accounts = accounts
        self._answering = answering
        self._itl = itl
        self._ring = ring
        self._seconds = seconds
        self._sliced = config.routing.slices.mode == "auto" and adapter.can.slices
        self._counts_gaps = config.routing.params.get("itl_statistic", 0) > 0
        self._gaps_until = 0.0
        self._gap_sums: Sequence[float] = ()
        self._gap_counts: Sequence[float] = ()
        self._rounds = Window(config.routing.stats_window_seconds)
        self._policies = Policies(
            config, profile=settings.profile, pools=settings.pools, salt=settings.worker, sliceable=self._sliced
        )
        self._default = self._policies.of(PLAIN_CLASS)

    @property
    def never_remote(self) -> bool:
        """Tell whether there are no prefill workers by design."""
        return self._default.never_remote

    def policy_of(self, class_: str) -> Policy:
        """Return the policy of a session class."""
        return self._policies.of(class_)

    def reload(self, config: RouterConfig) -> None:
        """Take over another configuration's policies; rounds under way keep theirs."""
        settings = self._settings
        self._policies = Policies(
            config, profile=settings.profile, pools=settings.pools, salt=settings.worker, sliceable=self._sliced,
            before=self._policies,
        )  # fmt: skip
        self._default = self._policies.of(PLAIN_CLASS)
        self._counts_gaps = config.routing.params.get("itl_statistic", 0) > 0

    @property
    def trusted(self) -> bool:
        """Tell whether predictions were right lately."""
        return self._policies.trusted

    def decide(self, rnd: Round) -> Decision:
        """Choose the route; only a history that can be read elsewhere, or is short, may be prefilled elsewhere."""
        now = monotonic()
        self._rounds.add(now, 1.0)
        outlook = rnd.outlook
        task = outlook.task
        policy = self.policy_of(rnd.class_)
        if policy.never_remote:
            return policy.route(task, decode=self.view(now), prefill=(), known=NOBODY)
        here = ""
        if not self._adapter.can.local:
            task = PrefillTask(0, task.history + task.increment)
        elif not rnd.inference.transferable:
            here = "not-transferable"
        elif outlook.handle is None and task.history > 0:
            if task.history >= task.increment:
                here = "history-unreadable"
            else:
                task = PrefillTask(0, task.history + task.increment)
        known = Circumstances(
            waited_s=now - rnd.started,
            later=outlook.later,
            answer=self._answer_tokens(rnd),
            rate=self._rounds.rate(now) * max(1, len(self._registry.ready("decode"))),
            cached=outlook.prefilled,
            priority=rnd.standing.priority,
            sliceable=self._sliced and rnd.inference.kind != "responses" and not rnd.inference.media,
        )
        views = () if here else self._remote.views(task)
        decision = policy.route(task, decode=self.view(now), prefill=views, known=known)
        if here:
            decision = decision._replace(reason=here)
        elif decision.remote is None and not self._adapter.can.local:
            decision = self._elsewhere(decision)
        rnd.record = self._ring.add(
            now, session=rnd.session, class_=rnd.class_, policy=policy.name, worker=self._worker.name, task=task,
            decision=decision, trace=rnd.trace,
        )  # fmt: skip
        ended = monotonic()
        self._seconds.observe(ended - now)
        if rnd.spans is not None:
            rnd.spans.decided(rnd.record, now, ended)
        return decision

    def _elsewhere(self, decision: Decision) -> Decision:
        """Send a prefill that this engine cannot do by itself to the prefill worker with the shortest queue."""
        worker = self._remote.other(set())
        return decision if worker is None else Decision(remote=worker, reason="no-local-prefill")

    def observed(self, rnd: Round, ttft_s: float) -> None:
        """Learn how good a decision's prediction was: its round's first token came."""
        if rnd.record is not None:
            rnd.record.ttft = ttft_s
        if rnd.decision is not None and not rnd.retried:
            self.policy_of(rnd.class_).observe(rnd.decision, ttft_s)

    def learned(self, rnd: Round, itl_s: float) -> None:
        """Learn what a decision's round took in all: ``itl_s`` is the mean gap of its answer."""
        if rnd.decision is not None and not rnd.retried and rnd.first_at is not None:
            self.policy_of(rnd.class_).learn(rnd.decision, ttft_s=rnd.first_at - rnd.started, itl_s=itl_s)

    def view(self, now: float) -> DecodeWorkerView:
        """Return this worker; the KV in use stands for the tokens of the sequences that decode."""
        worker = self._worker
        queue = worker.queue
        paces = self._answering.decoding.values()
        used = worker.kv_used
        if len(paces) <= FEW or now >= self._gaps_until:
            self._gaps_until = now + GAPS_S
            self._gap_sums = [pace.over for pace in paces] if self._counts_gaps else [pace.seconds for pace in paces]
            self._gap_counts = [pace.gaps for pace in paces]
        return DecodeWorkerView(
            worker=self._settings.worker,
            degree=self._settings.degree,
            queue_s=queue.seconds,
            queued=len(queue),
            windowed_itl=self._itl.mean(now),
            kv_used=used,
            kv_capacity=worker.kv_capacity,
            batch=len(paces),
            context=used,
            gap_sums=self._gap_sums,
            gap_counts=self._gap_counts,
            queue_tokens=queue.tokens,
            queue_work=queue.work,
        )

    def _answer_tokens(self, rnd: Round) -> float:
        """Return how long the answer may be: the mean answer so far, at most what the client allows."""
        mean, most = self._accounts.answer_tokens, rnd.inference.max_tokens
        return mean if most is None or mean <= most else float(most)
