"""Every metric of the router, in one registry a process; the reference page lists exactly these."""

import sys

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics import MetricWrapperBase

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0)
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0)
TOKENS = (16.0, 64.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0)
PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)

_PAGE = """# Metrics of the router

Every router process serves these at `GET :8080/metrics`, without a token; a worker's sidecar also passes its engine's
own metrics on at `GET :8080/engine/metrics`. Times are seconds. Written by `python -m weft_router.signals.metrics`.

Where they are counted: TTFT, ITL, SLO, decisions, history, KV bytes and handles in decode sidecars; queue and prefill
times in the sidecar whose queue it is; replays and bindings in coordinators; requests in all (label `role`). TTFT, ITL
and SLO are those of streams: an answer in one piece shows neither its first token nor its gaps.

* `phase` is `first` for the first round of a conversation and `later` for the rounds after it; `route` is `local`
  (prefilled by the decode worker) or `remote` (prefilled by a prefill worker).
* `weft_router_kv_handles_total` by `outcome`: `stored` (a round left a handle), `used` (a remote prefill read the
  history by it), `superseded` (the next round ran locally, where the cache has it), `expired`, `history_changed` (the
  next prompt did not continue what the engine saw), `ids_differ` (its token ids did not; the prefill was repeated),
  `refused` and `lost` (the prefill worker would not read, or broke), `malformed`, `orphaned` (prefilled KV that no
  decode engine is known to have taken: it refused or failed, or the client left; it waits for its lease).
* `weft_router_history_tokens_total` by `kind`: `read` (came from the decode worker), `cached` (was where it was
  needed), `recomputed`. KV bytes and `read` come from token counts: an engine reports its own cache and what it read
  as one figure, and what the session left in its cache earlier is taken off.

| name | type | labels | meaning |
| --- | --- | --- | --- |
"""


class Metrics:
    """The counters, gauges and histograms of one router process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.requests = Counter(
            "weft_router_requests", "Requests answered, by status code and role", ["code", "role"], registry=r
        )
        self.inflight = Gauge("weft_router_inflight", "Requests being served now", ["role"], registry=r)
        self.ttft = Histogram(
            "weft_router_ttft_seconds",
            "Time to first token of a streamed round, from the decode sidecar's receipt to the engine's first token",
            ["phase", "route"],
            buckets=SECONDS,
            registry=r,
        )
        self.itl = Histogram("weft_router_itl_seconds", "Gap between tokens of a stream", buckets=GAPS, registry=r)
        self.slo = Counter(
            "weft_router_slo_rounds",
            "Streamed rounds that met (good) or missed (bad) an SLO threshold; ITL by the round's mean",
            ["objective", "outcome"],
            registry=r,
        )
        self.decisions = Counter(
            "weft_router_decisions",
            "Where prefills ran, and why",
            ["policy", "route", "reason"],
            registry=r,
        )
        self.queue_length = Gauge(
            "weft_router_queue_length", "Prefill tasks waiting or running on this worker", registry=r
        )
        self.queue_seconds = Histogram(
            "weft_router_queue_seconds", "Time a prefill waited for its turn", buckets=SECONDS, registry=r
        )
        self.prefill_seconds = Histogram(
            "weft_router_prefill_seconds", "Time the engine took for a remote prefill", buckets=SECONDS, registry=r
        )
        self.prefill_failures = Counter(
            "weft_router_prefill_failures", "Remote prefills that failed, by reason", ["reason"], registry=r
        )
        self.kv_bytes = Counter(
            "weft_router_kv_bytes",
            "KV moved between workers, from token counts and the profile's bytes per token",
            ["direction"],
            registry=r,
        )
        self.kv_handles = Counter("weft_router_kv_handles", "What became of KV handles", ["outcome"], registry=r)
        self.history = Counter(
            "weft_router_history_tokens",
            "History tokens of later rounds: read from another worker, cached where they were needed, or recomputed",
            ["kind"],
            registry=r,
        )
        self.sessions = Gauge("weft_router_sessions", "Sessions this process remembers", registry=r)
        self.rounds = Counter("weft_router_rounds", "Rounds finished, by phase", ["phase"], registry=r)
        self.increment_tokens = Histogram(
            "weft_router_increment_tokens", "New prompt tokens of a round", ["phase"], buckets=TOKENS, registry=r
        )
        self.decode_tokens = Histogram(
            "weft_router_decode_tokens", "Generated tokens of a round", buckets=TOKENS, registry=r
        )
        self.round_gap = Histogram(
            "weft_router_round_gap_seconds",
            "Pause of a session between the end of a round and its next one",
            buckets=PAUSES,
            registry=r,
        )
        self.replays = Counter(
            "weft_router_replays", "Requests sent again to another decode worker, by reason", ["reason"], registry=r
        )
        self.broken_streams = Counter(
            "weft_router_broken_streams",
            "Streams ended with an error event after their first token",
            ["reason"],
            registry=r,
        )
        self.cancelled = Counter("weft_router_cancelled", "Requests whose client went away", registry=r)
        self.dropped_fields = Counter(
            "weft_router_dropped_fields", "Router-owned fields found in client bodies and taken out", registry=r
        )
        self.state_up = Gauge("weft_router_state_up", "1 while the shared store answers", registry=r)
        self.workers = Gauge(
            "weft_router_workers", "Workers this process knows, by role and state", ["role", "state"], registry=r
        )

    def page(self) -> bytes:
        """Return all metrics in Prometheus' text form."""
        return generate_latest(self.registry)


def reference() -> str:
    """Return the reference page: every metric with its type, labels and meaning."""
    rows = []
    for metric in vars(Metrics()).values():
        if isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            suffix = "_total" if family.type == "counter" else ""
            labels = ", ".join(f"`{name}`" for name in metric._labelnames) or "none"
            rows.append(f"| `{family.name}{suffix}` | {family.type} | {labels} | {family.documentation} |")
    return _PAGE + "\n".join(sorted(rows)) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
