"""Every metric of the router, in one catalogue a process; ``metrics_reference`` describes exactly these."""

import asyncio
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, ProcessCollector

from weft_router.telemetry.exposition import NOTHING, OPENMETRICS, PLAIN, dump, render, wants_openmetrics
from weft_router.telemetry.gateway_metrics import GatewayMetrics
from weft_router.telemetry.instruments import Counter, Gauge, Histogram, Metric, metrics_of
from weft_router.telemetry.kv_disk_metrics import KvDiskMetrics

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0)
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0)
TOKENS = (16.0, 64.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0)
PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
ROUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0)
BRIEF = (1e-5, 2e-5, 3e-5, 5e-5, 7.5e-5, 1e-4, 1.5e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 2.5e-2)

PROCESS = {
    "process_cpu_seconds": "Total user and system CPU time spent in seconds.",
    "process_max_fds": "Maximum number of open file descriptors.",
    "process_open_fds": "Number of open file descriptors.",
    "process_resident_memory_bytes": "Resident memory size in bytes.",
    "process_start_time_seconds": "Start time of the process since unix epoch in seconds.",
    "process_virtual_memory_bytes": "Virtual memory size in bytes.",
}
"""What the library reads of a process on Linux."""


class Metrics:
    """The counters, gauges and histograms of one router process."""

    def __init__(self) -> None:
        self.requests = Counter("weft_router_requests", "Requests answered, by status code and role", ["code", "role"])
        self.inflight = Gauge("weft_router_inflight", "Requests being served now", ["role"])
        self.ttft = Histogram(
            "weft_router_ttft_seconds",
            "Time to first token, from the decode sidecar's receipt to the engine's first token",
            ["phase", "route", "class"],
            buckets=SECONDS,
        )
        self.itl = Histogram(
            "weft_router_itl_seconds", "Gap between tokens of an answer", ["route", "class"], buckets=GAPS
        )
        self.slo = Counter(
            "weft_router_slo_rounds",
            "Rounds that met (good) or missed (bad) an SLO threshold; ITL by the round's mean",
            ["objective", "outcome", "class"],
        )
        self.slo_target = Gauge(
            "weft_router_slo_attainment_target", "Share of rounds, or sessions, that must meet the SLO", ["class"]
        )
        self.slo_sessions = Counter(
            "weft_router_slo_sessions",
            "Ended sessions whose rounds all met TTFT and whose mean ITL was met (good), or not (bad)",
            ["outcome", "class"],
        )
        self.decisions = Counter("weft_router_decisions", "Where prefills ran, and why", ["policy", "route", "reason"])
        self.predictions_trusted = Gauge(
            "weft_router_predictions_trusted",
            "0 while predicted and observed TTFT disagree, and decisions go by corrected predictions",
        )
        self.engine_slowdown = Gauge(
            "weft_router_engine_slowdown",
            "How many times slower than its cost profile the worker's engine prefills: a minute's median, at most 8",
        )
        self.decision_seconds = Histogram(
            "weft_router_decision_seconds", "Time the policy took to decide a route", buckets=BRIEF
        )
        self.leg_seconds = Histogram(
            "weft_router_leg_seconds",
            "Time from sending a leg's request to the first byte of its answer",
            ["leg", "class"],
            buckets=SECONDS,
        )
        self.queue_length = Gauge("weft_router_queue_length", "Prefill tasks waiting or running on this worker")
        self.queue_seconds = Histogram(
            "weft_router_queue_seconds", "Time a prefill waited for its turn", ["class"], buckets=SECONDS
        )
        self.delay_seconds = Histogram(
            "weft_router_prefill_delay_seconds",
            "Time a local prefill waited for sessions beside it that it would have made miss their ITL",
            buckets=SECONDS,
        )
        self.prefill_seconds = Histogram(
            "weft_router_prefill_seconds", "Time the engine took for a remote prefill", buckets=SECONDS
        )
        self.read_overlap = Histogram(
            "weft_router_read_overlap_seconds",
            "Time in which an engine could read a prefill's history while it computed the prefill before",
            buckets=SECONDS,
        )
        self.history_reads = Counter(
            "weft_router_history_reads",
            "Prefills that read their history, by whether the engine could do so while it computed the prefill before",
            ["overlap"],
        )
        self.prefill_failures = Counter(
            "weft_router_prefill_failures", "Remote prefills that failed, by reason", ["reason"]
        )
        self.slice_tokens = Histogram(
            "weft_router_slice_tokens", "Prompt tokens of a slice of a local prefill", buckets=TOKENS
        )
        self.kv_bytes = Counter(
            "weft_router_kv_bytes",
            "KV moved between workers, from token counts and the profile's bytes per token",
            ["direction"],
        )
        self.kv_handles = Counter("weft_router_kv_handles", "What became of KV handles", ["outcome"])
        self.kv_events = Counter(
            "weft_router_kv_events", "Batches of KV events that came from the engine, or are missing", ["outcome"]
        )
        self.kv_events_refused = Counter(
            "weft_router_kv_events_refused", "KV events that say nothing about cached prompts, by why", ["reason"]
        )
        self.kv_events_blocks = Gauge(
            "weft_router_kv_events_blocks", "KV blocks that the engine keeps, by its events", ["tier"]
        )
        self.kv_events_trusted = Gauge(
            "weft_router_kv_events_trusted", "1 while the engine's KV events agree with the rounds that it serves"
        )
        self.kv_predictions = Counter(
            "weft_router_kv_predictions",
            "Prompts prefilled by their decode worker, by the cached tokens that events said and the engine found",
            ["outcome"],
        )
        self.prefix_sources = Gauge(
            "weft_router_prefix_sources",
            "Ready decode workers by what is known of their prefix caches: their events, or an estimate",
            ["source"],
        )
        self.engine_plugins = Gauge(
            "weft_router_engine_plugins",
            "Engines of this process by whether they have the plug-in that puts KV handles into streams",
            ["state"],
        )
        self.adapters = Gauge(
            "weft_router_adapters", "LoRA adapters that engines are to have: loaded, or missing", ["state"]
        )
        self.adapter_changes = Counter(
            "weft_router_adapter_changes",
            "Requests to engines to load or unload a LoRA adapter: loaded, failed to load, or unloaded",
            ["outcome"],
        )
        self.kv_proofs = Counter(
            "weft_router_kv_proofs", "Proofs that KV goes from a prefill engine to this one and back", ["outcome"]
        )
        self.handle_releases = Counter(
            "weft_router_handle_releases",
            "Prefilled KV that was given back to its engine, or could not be, after a leg between failed",
            ["outcome"],
        )
        self.history = Counter(
            "weft_router_history_tokens",
            "History tokens of later rounds: read from another worker, cached where they were needed, or recomputed",
            ["kind"],
        )
        self.recomputed = Counter(
            "weft_router_recomputed_tokens",
            "History tokens of later rounds that were recomputed, by reason",
            ["reason"],
        )
        self.kv_saved = Counter(
            "weft_router_kv_saved_seconds",
            "Seconds that loads of history from a tier took less than computing it, by the cost profile",
            ["tier"],
        )
        self.sessions = Gauge("weft_router_sessions", "Sessions this process remembers")
        self.sessions_moved = Counter(
            "weft_router_sessions_moved",
            "Sessions taken over from a worker that drains or ceased to decode, by how their history goes on: read by "
            "handle, from the cache of the worker that they left, or prefill",
            ["by"],
        )
        self.draining = Gauge("weft_router_draining", "1 while this process drains")
        self.drain_left = Gauge(
            "weft_router_drain_left",
            "What a worker that drains, or hands its sessions over for another role, still has: live rounds, and "
            "sessions whose KV waits for their next round",
            ["what"],
        )
        self.role = Gauge("weft_router_role", "Workers of this process by the role in force", ["role"])
        self.role_changes = Counter(
            "weft_router_role_changes", "Changes of a worker's role, once the new one is in force", ["from", "to"]
        )
        self.role_change_seconds = Histogram(
            "weft_router_role_change_seconds",
            "Time from a worker's new assignment to its new role, the hand-over of its sessions included",
            ["from", "to"],
            buckets=PAUSES,
        )
        self.role_errors = Counter(
            "weft_router_role_errors", "Role files that could not be read or named no role; the worker kept its role"
        )
        self.arrivals = Counter(
            "weft_router_arrivals", "Rounds that a decode worker took on, each once, by phase", ["phase", "class"]
        )
        self.rounds = Counter("weft_router_rounds", "Rounds finished, by phase", ["phase", "class"])
        self.round_index = Histogram(
            "weft_router_round_index",
            "Which round of its session a finished round was, the first being 1",
            ["class"],
            buckets=ROUNDS,
        )
        self.round_history = Histogram(
            "weft_router_round_history_tokens",
            "Prompt tokens of a later round that its session had before",
            ["class"],
            buckets=TOKENS,
        )
        self.increment_tokens = Histogram(
            "weft_router_increment_tokens", "New prompt tokens of a round", ["phase", "class"], buckets=TOKENS
        )
        self.decode_tokens = Histogram(
            "weft_router_decode_tokens", "Generated tokens of a round", ["class"], buckets=TOKENS
        )
        self.round_gap = Histogram(
            "weft_router_round_gap_seconds",
            "Pause of a session between the end of a round and its next one",
            ["class"],
            buckets=PAUSES,
        )
        self.session_rounds = Histogram(
            "weft_router_session_rounds", "Rounds of an ended session", ["class"], buckets=ROUNDS
        )
        self.replays = Counter(
            "weft_router_replays", "Requests sent again to another decode worker, by reason", ["reason"]
        )
        self.rebinds = Counter(
            "weft_router_rebinds", "Sessions that were bound to another decode worker, by reason", ["reason"]
        )
        self.resumes = Counter(
            "weft_router_resumes", "Streams that lost their worker after the first token", ["outcome"]
        )
        self.hedges = Counter("weft_router_hedges", "Prefills raced in two places, by which won", ["outcome"])
        self.broken_streams = Counter(
            "weft_router_broken_streams", "Streams ended with an error event after their first token", ["reason"]
        )
        self.rejected = Counter(
            "weft_router_rejected", "Requests refused before any work was done for them", ["reason", "class"]
        )
        self.fallbacks = Counter(
            "weft_router_fallbacks",
            "Requests that this service was too busy for and sent to its fallback service, by result: served, refused, "
            "failed",
            ["result"],
        )
        self.held = Gauge("weft_router_held", "Requests that wait until a decode worker is ready")
        self.rate_limited = Counter(
            "weft_router_rate_limited", "Requests above a rate limit of their key, by limit", ["limit"]
        )
        self.degraded = Counter(
            "weft_router_degraded", "Requests served with less than asked for, under pressure", ["how", "class"]
        )
        self.ejections = Counter("weft_router_ejections", "Workers taken out of use for failing", ["role", "reason"])
        self.readmissions = Counter("weft_router_readmissions", "Workers taken back after a good probe", ["role"])
        self.connections_cut = Counter(
            "weft_router_connections_cut", "Client connections that this process closed", ["reason"]
        )
        self.client_bytes = Gauge(
            "weft_router_client_bytes", "Bytes of requests and unread answers that clients make this process hold"
        )
        self.client_bytes_limit = Gauge("weft_router_client_bytes_limit", "How many they may be")
        self.no_room = Counter(
            "weft_router_no_room", "Requests refused and unfinished ones ended for lack of room", ["what"]
        )
        self.links = Gauge("weft_router_links", "Sidecars to which this process's requests go over a link")
        self.engine_deaths = Counter(
            "weft_router_engine_deaths",
            "Requests whose engine ended while it worked on them, by what became of them",
            ["verdict"],
        )
        self.quarantined = Gauge(
            "weft_router_quarantined_requests",
            "Requests that are refused because an engine ended while it served the same",
        )
        self.cancelled = Counter("weft_router_cancelled", "Requests whose client went away")
        self.dropped_fields = Counter(
            "weft_router_dropped_fields", "Router-owned fields found in client bodies and taken out"
        )
        self.configuration_age = Gauge(
            "weft_router_configuration_age_seconds",
            "Age of the active configuration: it grows while nobody writes another one or what is written is refused",
        )
        self.records_refused = Counter(
            "weft_router_store_records_refused",
            "Records in the shared store that are not believed: made by nobody of this service, old, or unreadable",
            ["reason"],
        )
        self.jwks_age = Gauge(
            "weft_router_jwks_age_seconds",
            "Age of the identity provider's keys, which grows while they cannot be read; 0 without a provider",
        )
        self.state_up = Gauge("weft_router_state_up", "1 while the shared store answers")
        self.workers = Gauge("weft_router_workers", "Workers this process knows, by role and state", ["role", "state"])
        self.lines_dropped = Counter(
            "weft_router_log_lines_dropped", "Log lines lost because nobody read them, or the disk was full"
        )
        self.spans = Counter("weft_router_spans", "Trace spans exported, or dropped", ["outcome"])
        self.compiled = Gauge(
            "weft_router_compiled", "1 where requests go by compiled modules, 0 where the same sources are interpreted"
        )
        self.tasks = Gauge("weft_router_tasks", "Tasks of the event loop")
        self.gateway = GatewayMetrics()
        self.kv_disk = KvDiskMetrics()
        self.catalogue: list[Metric] = [*metrics_of(self), *metrics_of(self.gateway), *metrics_of(self.kv_disk)]
        self._process = ProcessCollector(registry=CollectorRegistry())

    def count_refused(self, refused: Mapping[str, int]) -> None:
        """Take over how many records of the store were refused, by reason."""
        for reason, count in refused.items():
            self.records_refused.labels(reason).value = float(count)

    def render(self, accept: str = "", *, place: str = "", others: Mapping[str, bytes] = NOTHING) -> tuple[bytes, str]:
        """Return the metrics page and its content type: OpenMetrics when the scraper's Accept header asks for it.

        ``others`` are the dumps of the processes that serve the same port, by their places; ``place`` is this one's.
        """
        openmetrics = wants_openmetrics(accept)
        text = render(self._all(), place=place, others=others, openmetrics=openmetrics)
        return (text + "# EOF\n").encode() if openmetrics else text.encode(), OPENMETRICS if openmetrics else PLAIN

    def page(self) -> bytes:
        """Return all metrics in Prometheus' text form."""
        return self.render()[0]

    def dump(self) -> bytes:
        """Return everything counted here, for another process of this router to answer a scrape with."""
        return dump(self._all())

    def _all(self) -> list[Metric]:
        try:
            self.tasks.set(len(asyncio.all_tasks()))
        except RuntimeError:  # no loop runs here
            self.tasks.set(0)
        return [*self.catalogue, *self._of_the_process()]

    def _of_the_process(self) -> list[Metric]:
        """Read processor time, memory and descriptors; there are none to read outside Linux."""
        found: list[Metric] = []
        for family in self._process.collect():
            documentation = PROCESS.get(family.name, family.documentation)
            made: Counter | Gauge
            made = (Counter if family.type == "counter" else Gauge)(family.name, documentation)
            made.inc(family.samples[0].value)
            found.append(made)
        return found
