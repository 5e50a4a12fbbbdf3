"""Export the engine's metric names, vLLM 0.32's or SGLang's, and the ledger under names of the mock engine's own."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from weft_mock.config import EngineConfig
from weft_mock.ledger import Ledger
from weft_mock.scheduler import Scheduler
from weft_mock.sequence import Sequence

_FIRST_TOKEN = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_TOKEN = (0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_REQUEST = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0)
_LENGTH = tuple(float(2**i) for i in range(18))
_LABELS = ("model_name", "engine")
_SOURCES = {"host": "cpu", "disk": "disk", "external_unspecified": "remote"}
"""Tiers by vLLM's names for where cached tokens came from; besides there are device and p2p."""
_VLLM_TIERS = {"cpu": "cpu", "disk": "fs", "remote": "remote"}
"""vLLM's types of lower tiers."""


class Metrics:
    """What the engine observes while it runs; gauges read its state when scraped."""

    def __init__(self, config: EngineConfig, *, ledger: Ledger, scheduler: Scheduler) -> None:
        """Register everything in a registry of this engine's own, so that several engines share a process in tests."""
        self.registry = CollectorRegistry()
        self._values = (config.names[0], "0")
        self._tiers = bool(config.kv_tiers)
        self._vllm = config.protocol in ("vllm", "neuron")
        self.first_token = self._histogram("time_to_first_token_seconds", _FIRST_TOKEN)
        self.inter_token = self._histogram("inter_token_latency_seconds", _TOKEN)
        self._per_token = self._histogram("request_time_per_output_token_seconds", _TOKEN)
        self._end_to_end = self._histogram("e2e_request_latency_seconds", _REQUEST)
        self._queue = self._histogram("request_queue_time_seconds", _REQUEST)
        self._prefill = self._histogram("request_prefill_time_seconds", _REQUEST)
        self._decode = self._histogram("request_decode_time_seconds", _REQUEST)
        self._prompt_length = self._histogram("request_prompt_tokens", _LENGTH)
        self._answer_length = self._histogram("request_generation_tokens", _LENGTH)
        self.transfer_seconds = self._histogram("nixl_xfer_time_seconds", _TOKEN)
        self.transfer_bytes = self._histogram("nixl_bytes_transferred", tuple(float(2**i) for i in range(20, 40, 2)))
        self.generated = self._counter("generation_tokens")
        self._prompt = self._counter("prompt_tokens")
        self._queries = self._counter("prefix_cache_queries")
        self._hits = self._counter("prefix_cache_hits")
        self._external_queries = self._counter("external_prefix_cache_queries")
        self._external_hits = self._counter("external_prefix_cache_hits")
        self.failed_transfers = self._counter("nixl_num_failed_transfers")
        self.failed_notifications = self._counter("nixl_num_failed_notifications")
        self.expired_requests = self._counter("nixl_num_kv_expired_reqs")
        self._success = Counter(
            "vllm:request_success", "Requests that ended", (*_LABELS, "finished_reason"), registry=self.registry
        )
        self._by_source = Counter(
            "vllm:prompt_tokens_by_source", "Prompt tokens", (*_LABELS, "source"), registry=self.registry
        )
        self.registry.register(_State(config, ledger=ledger, scheduler=scheduler))

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(f"vllm:{name}", name.replace("_", " "), _LABELS, buckets=buckets, registry=self.registry)
        return family.labels(*self._values)

    def _counter(self, name: str) -> Counter:
        family = Counter(f"vllm:{name}", name.replace("_", " "), _LABELS, registry=self.registry)
        return family.labels(*self._values)

    def ended(self, sequence: Sequence, *, now: float, reason: str) -> None:
        """Observe a request that ended, for whatever reason."""
        record = sequence.record
        self._success.labels(*self._values, reason).inc()
        self._prompt.inc(record.prompt)
        self._queries.inc(record.prompt)
        self._hits.inc(record.cached)
        if sequence.source is not None or self._tiers:
            self._external_queries.inc(record.prompt - record.cached)
            self._external_hits.inc(record.read + record.loaded)
        for source, tokens in (
            ("local_compute", record.computed),
            ("local_cache_hit", record.cached),
            ("external_kv_transfer", record.read + record.loaded),
        ):
            self._by_source.labels(*self._values, source).inc(tokens)
        self._prompt_length.observe(record.prompt)
        self._answer_length.observe(record.generated)
        self._end_to_end.observe(now - sequence.arrived)
        if sequence.admitted is not None:
            self._queue.observe(sequence.admitted - sequence.arrived)
            if sequence.started is not None:
                self._prefill.observe(sequence.started - sequence.admitted)
                self._decode.observe(now - sequence.started)
                if record.generated > 1:
                    self._per_token.observe((now - sequence.started) / (record.generated - 1))

    def text(self) -> bytes:
        """Return the exposition text; without vLLM's names for an engine that has others."""
        text = generate_latest(self.registry)
        if self._vllm:
            return text
        marks = (b"vllm:", b"# HELP vllm:", b"# TYPE vllm:")
        return b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(marks))


class _State(Collector):
    """Read queues, blocks and ledger at scrape time, so that running costs nothing."""

    def __init__(self, config: EngineConfig, *, ledger: Ledger, scheduler: Scheduler) -> None:
        self._config = config
        self._ledger = ledger
        self._scheduler = scheduler

    def _cached_by_source(self) -> Metric:
        history, loaded = self._ledger.history_tokens, self._scheduler.tiers.loaded
        counts = {"device": history["cached"], "p2p": history["prefill_to_decode"] + history["decode_to_prefill"]}
        counts |= {source: loaded[tier] for source, tier in _SOURCES.items()}
        labels = (*_LABELS, "source")
        family = CounterMetricFamily("vllm:prompt_tokens_cached_by_source", "Cached prompt tokens", labels=labels)
        for source, count in counts.items():
            family.add_metric((self._config.names[0], "0", source), count)
        return family

    def _offloading(self) -> Iterable[Metric]:
        """Return what vLLM 0.32 counts of its OffloadingConnector; loads go through the first tier."""
        tiers, values = self._scheduler.tiers, (self._config.names[0], "0")
        first, *others = [tier.name for tier in self._config.kv_tiers]

        def moved(name: str, text: str, tokens: Mapping[str, float]) -> Metric:
            """Return bytes by the label that vLLM gives each tier, "" for none."""
            labels = _LABELS if set(tokens) == {""} else (*_LABELS, "tier")
            family = CounterMetricFamily(f"vllm:kv_offload_{name}", text, labels=labels)
            for tier, count in tokens.items():
                family.add_metric((*values, tier) if tier else values, count * tiers.bytes_per_token)
            return family

        yield moved("load_bytes", "Bytes loaded from tiers to the GPU", {"": tiers.loaded.total()})
        yield moved("store_bytes", "Bytes stored from the GPU to tiers", {"": tiers.stored[first]})
        if others:
            below = {f"{place}:{_VLLM_TIERS[name]}": name for place, name in enumerate(others, start=1)}
            read = {label: tiers.loaded[name] for label, name in below.items()}
            written = {label: tiers.stored[name] for label, name in below.items()}
            yield moved("tiering_read_bytes", "Bytes read from lower tiers", read)
            yield moved("tiering_write_bytes", "Bytes written to lower tiers", written)

    def collect(self) -> Iterable[Metric]:
        scheduler, ledger, config = self._scheduler, self._ledger, self._config
        pool = scheduler.pool
        values = (config.names[0], "0")
        waiting, fetching = scheduler.queued, len(scheduler.fetching) + len(scheduler.loading)

        def gauge(name: str, text: str, value: float) -> Metric:
            family = GaugeMetricFamily(name, text, labels=_LABELS)
            family.add_metric(values, value)
            return family

        def by(name: str, text: str, label: str, counts: Mapping[str, float]) -> Metric:
            family = GaugeMetricFamily(name, text, labels=(*_LABELS, label))
            for key, value in counts.items():
                family.add_metric((*values, key), value)
            return family

        def total(name: str, text: str, label: str, counts: Mapping[str, float]) -> Metric:
            family = CounterMetricFamily(name, text, labels=(label,))
            for key, value in counts.items():
                family.add_metric((key,), value)
            return family

        yield gauge("vllm:num_requests_running", "Requests in the running batch", len(scheduler.running))
        yield gauge("vllm:num_requests_waiting", "Requests that wait", waiting + fetching)
        yield by(
            "vllm:num_requests_waiting_by_reason",
            "Requests that wait, by reason",
            "reason",
            {"capacity": waiting, "deferred": fetching},
        )
        yield by(
            "vllm:num_requests_kv_fetch_by_stage",
            "Requests that read remote KV",
            "stage",
            {"waiting_to_start": 0, "in_progress": fetching, "completed_waiting": 0},
        )
        yield self._cached_by_source()
        if config.kv_tiers:
            yield from self._offloading()
        yield gauge("vllm:kv_cache_usage_perc", "Used part of the KV cache, 1 is all", pool.used / pool.total)
        preemptions = CounterMetricFamily("vllm:num_preemptions", "Preempted requests", labels=_LABELS)
        preemptions.add_metric(values, ledger.preemptions)
        yield preemptions
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "KV cache", labels=("block_size", "num_gpu_blocks", "engine")
        )
        info.add_metric((str(pool.block_size), str(pool.total), "0"), 1)
        yield info
        if config.protocol == "sglang":
            for name, text, value in (
                ("num_running_reqs", "Requests in the running batch", len(scheduler.running)),
                ("num_queue_reqs", "Requests that wait", waiting + fetching),
                ("num_used_tokens", "Used part of the KV cache", pool.used * pool.block_size),
                ("token_usage", "Used part of the KV cache, 1 is all", pool.used / pool.total),
                ("max_total_num_tokens", "Size of the KV cache", pool.total * pool.block_size),
            ):
                family = GaugeMetricFamily(f"sglang:{name}", text, labels=("model_name",))
                family.add_metric(values[:1], value)
                yield family
        if config.protocol == "tensorrt-llm":
            for name, text, value in (
                ("num_requests_running", "Number of active requests", len(scheduler.running)),
                ("num_requests_waiting", "Number of queued requests", waiting + fetching),
                ("kv_cache_utilization", "KV cache utilization", pool.used / pool.total),
                ("kv_cache_max_blocks", "Size of the KV cache", pool.total),
                ("kv_cache_tokens_per_block", "Tokens of a block", pool.block_size),
            ):
                family = GaugeMetricFamily(f"trtllm_{name}", text, labels=("model_name",))
                family.add_metric(values[:1], value)
                yield family
        blocks = {"free": pool.free, "used": pool.used, "cached": pool.cached, "pinned": scheduler.pins.blocks}
        for state, count in blocks.items():
            yield GaugeMetricFamily(f"weft_mock_{state}_blocks", f"KV blocks that are {state}", count)
        tier_blocks = GaugeMetricFamily("weft_mock_tier_blocks", "KV blocks below the GPUs", labels=("tier",))
        for tier, count in scheduler.tiers.blocks().items():
            tier_blocks.add_metric((tier,), count)
        yield tier_blocks
        yield total("weft_mock_tier_loaded_tokens", "Tokens loaded from tiers", "tier", scheduler.tiers.loaded)
        yield GaugeMetricFamily(
            "weft_mock_pins", "Finished requests whose blocks wait for a reader", len(scheduler.pins)
        )
        yield GaugeMetricFamily("weft_mock_leaked_blocks", "KV blocks nobody will ever free", len(scheduler.leaked))
        yield CounterMetricFamily("weft_mock_evictions", "Cached blocks given to others", pool.evictions)
        yield CounterMetricFamily("weft_mock_prefilled_tokens", "Prompt tokens computed", ledger.prefilled_tokens)
        yield CounterMetricFamily("weft_mock_prompt_tokens", "Prompt tokens received", ledger.prompt_tokens)
        yield CounterMetricFamily(
            "weft_mock_recomputed_after_preemption_tokens",
            "Tokens computed again",
            ledger.recomputed_after_preemption_tokens,
        )
        yield total(
            "weft_mock_history_tokens", "Prompt tokens whose KV existed, by source", "source", ledger.history_tokens
        )
        moved = CounterMetricFamily("weft_mock_kv_bytes", "Simulated KV bytes", labels=("direction", "way"))
        for (direction, way), count in ledger.kv_bytes.items():
            moved.add_metric((direction, way), count)
        yield moved
        yield total("weft_mock_handles", "Life of the handles made here", "event", ledger.handles)
        yield total("weft_mock_refused_handles", "Reads refused as the holder", "reason", ledger.refused_handles)
        yield total("weft_mock_failed_reads", "Reads given up as the reader", "reason", ledger.failed_reads)
        yield total("weft_mock_kv_protocol_errors", "Wrong kv_transfer_params", "reason", ledger.kv_protocol_errors)
        yield total(
            "weft_mock_kv_consequences", "The same, by what vLLM would do", "consequence", ledger.kv_consequences
        )
        yield total("weft_mock_violations", "What no engine of this protocol may be sent", "reason", ledger.violations)
        yield CounterMetricFamily("weft_mock_failed_releases", "Releases nobody took", ledger.failed_releases)
        yield CounterMetricFamily("weft_mock_lost_seconds", "Time behind the profile, given up", ledger.lost_seconds)
        yield GaugeMetricFamily(
            "weft_mock_worst_lateness_seconds", "Largest delay of a step", ledger.worst_lateness_seconds
        )
