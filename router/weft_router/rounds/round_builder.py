"""Make a round of a request: what is cached of its prompt, and what its engine is asked for."""

from time import monotonic

from weft_router.auth.cache_salts import CacheSalts
from weft_router.config import PLAIN_CLASS, RouterConfig
from weft_router.engines.adapter import Adapter, EngineRequest
from weft_router.engines.resume import resumable, resume_kinds
from weft_router.openai.identity import scope_of
from weft_router.openai.inference import Inference
from weft_router.openai.prompt_history import PromptHistory, history_of
from weft_router.openai.tokens import CharsPerToken
from weft_router.rounds.expected_cache import expected_cached
from weft_router.routing.prefill_workers import PrefillWorkers
from weft_router.routing.route_selector import RouteSelector
from weft_router.sessions.engine_kv import as_cached
from weft_router.sessions.kv_releaser import KvReleaser
from weft_router.sessions.round import Round
from weft_router.sessions.round_request import RoundRequest
from weft_router.sessions.session import PrefixMatch
from weft_router.sessions.session_export import SessionExport
from weft_router.sessions.session_table import SessionTable
from weft_router.telemetry.metrics import Metrics
from weft_router.telemetry.session_latency import SessionLatencies
from weft_router.workers.scheduling_priority import SchedulingPriority, urgency
from weft_router.workers.worker import Worker


class RoundBuilder:
    """Makes the rounds of one decode worker."""

    def __init__(
        self, worker: Worker, *, adapter: Adapter, sessions: SessionTable, prefill_workers: PrefillWorkers,
        route_selector: RouteSelector, session_export: SessionExport, releaser: KvReleaser, salts: CacheSalts,
        latencies: SessionLatencies, ratio: CharsPerToken, metrics: Metrics,
    ) -> None:  # fmt: skip
        """Make rounds from the sessions and the engine of ``worker``."""
        config = worker.settings.config
        self._worker = worker
        self._adapter = adapter
        self._sessions = sessions
        self._prefill_workers = prefill_workers
        self._route_selector = route_selector
        self._session_export = session_export
        self._releaser = releaser
        self._salts = salts
        self._latencies = latencies
        self._ratio = ratio
        self._metrics = metrics
        self._bidirectional = config.engine.bidirectional
        self._token_resume_kinds = resume_kinds(adapter) - {"regenerate"}
        """How streams are resumed from token ids."""
        self._urgency = urgency(config)

    def reload(self, config: RouterConfig) -> None:
        """Apply another configuration's classes to later rounds."""
        self._urgency = urgency(config)

    def build(self, request: RoundRequest) -> Round:
        """Return the round of a request; it takes its session's handle, and KV that it cannot use is released."""
        inference = request.inference
        prompt_history = request.prompt_history or history_of(inference)
        prefix_match = self._match_prefix(request.session, inference, prompt_history, local_only=request.local_only)
        if request.last_prefill is not None:
            prefix_match = prefix_match.prefilled_last(request.last_prefill)
        # Whether the engine keeps the KV for prefill workers to read in the next round.
        reads = self._route_selector.policy_of(request.class_).reads_history
        export = self._bidirectional and inference.transferable and reads and not self._route_selector.never_remote
        if request.keep_ids:
            inference.wants_ids = True
        # Resuming a stream on another worker needs its token ids.
        kinds = self._token_resume_kinds
        resumes = inference.stream and bool(kinds) and resumable(inference).how in kinds
        counted = self._worker.kv_cache is not None and self._adapter.can.ids
        want_ids = export or request.keep_ids or resumes or counted
        # Engines know cached prefixes of an adapter by its name alone, whatever its source.
        within = scope_of(request.tenant, inference.version)
        engine_request = EngineRequest(
            inference, request.id, salt=self._salts.of(within), want_ids=want_ids, cap=request.cap
        )
        engine_request.response_id = request.response_id
        latency = self._latencies.of(request.session)
        ttft_slo, priority = self._urgency.get(request.class_) or self._urgency[PLAIN_CLASS]
        scheduling = SchedulingPriority(
            ttft_slo=ttft_slo, priority=priority, tenant=request.tenant, lost=latency.late > 0,
            waited_s=monotonic() - request.started, class_=request.class_, spans=request.spans, deaths=request.deaths,
            adapter=inference.version,
        )  # fmt: skip
        expected = expected_cached(
            self._worker, request, prompt_history, continues=prefix_match.continues, ratio=self._ratio
        )
        return Round(
            id=request.id,
            session=request.session,
            inference=inference,
            prompt_history=prompt_history,
            prefix_match=prefix_match,
            started=request.started,
            engine_request=engine_request,
            export=export,
            resumed=request.resumed,
            class_=request.class_,
            trace=request.trace,
            spans=request.spans,
            latency=latency,
            expected_cached=expected,
            scheduling=scheduling,
            deaths=request.deaths,
        )

    def _match_prefix(
        self, session: str, inference: Inference, prompt_history: PromptHistory, *, local_only: bool
    ) -> PrefixMatch:
        """Return the prefix match of a session's new round, and take the session's handle."""
        prefix_match = self._sessions.begin(session, inference, prompt_history, self._ratio)
        if prefix_match.gap_s is not None:
            self._session_export.paused(prefix_match.gap_s)
        if prefix_match.away:
            tokens = prefix_match.task.history + prefix_match.task.increment
            readers = self._prefill_workers.with_room(tokens, prefix_match.handle, adapter=inference.version)
            if local_only or not inference.transferable or not readers:
                prefix_match = prefix_match.recomputed()
        prefix_match = as_cached(self._worker, session, prefix_match)
        if prefix_match.lost is not None:
            self._metrics.kv_handles.labels(prefix_match.lost).inc()
            if prefix_match.spare is not None:
                self._releaser.release_handle(prefix_match.spare)
        return prefix_match
