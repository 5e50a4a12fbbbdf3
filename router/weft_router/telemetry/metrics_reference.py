"""Write the reference page of the router's metrics: ``python -m weft_router.telemetry.metrics_reference``."""

import sys

from weft_router.telemetry.metrics import PROCESS, Metrics

_PAGE = """# Metrics of the router

Every router process serves these at `GET :8080/metrics`, without a token; a worker's sidecar also passes its engine's
own metrics on at `GET :8080/engine/metrics`. Times are seconds. Written by `python -m
weft_router.telemetry.metrics_reference`.

A scraper that asks for OpenMetrics in its `Accept` header gets it, with exemplars: the buckets of TTFT, queue, prefill
and leg times, and of gaps over the SLO, carry the `trace_id` of the last request that fell into them. It is the number
in `X-Request-Id` and the `trace` of the access line. Other scrapers get Prometheus' text form 0.0.4. Of processes that
share a port (`--processes`) any one answers for all, each with its own label `process`, a number from 0: one that dies
and restarts at zero must not look as if all had.

Where they are counted: TTFT, ITL, SLO, decisions, history, KV bytes and handles in decode sidecars; queue and prefill
times in the sidecar whose queue it is; replays, resumes, rejections and bindings in coordinators; requests in all
(label `role`); all of it in one place with the role `standalone`; `weft_router_gateway_*` in gateways.

An answer in one piece (`stream: false`) shows neither its first token nor its gaps. Its first token counts as made when
the prefill leg ended; for a local prefill, when it was predicted to end, given the engine's counts of its prompt and of
cached tokens; an answer of one token is its own first token. All gaps after that are equal: (total - TTFT) / (n - 1),
with n from the engine's `usage`. Gaps of a remote prefill thus include the transfer of its KV. An answer that ended
before its predicted first token gives each token an equal share of the time.

* `phase` is `first` for the first round of a conversation and `later` for the rounds after it; `route` is `local`
  (prefilled by the decode worker) or `remote` (prefilled by a prefill worker); `class` is the request's session class,
  `default` without one; `leg` is `prefill` or `decode` (to an engine or its sidecar) or `relay` (coordinator to
  sidecar).
* `weft_router_slo_rounds_total` by `objective`: `ttft`, `itl`, or `round` (both met). A burn rate needs the share
  `outcome="bad"` of all; `weft_router_slo_sessions_total` counts by session, which is how plans state attainment.
  `weft_router_slo_attainment_target` is `spec.slo.attainment`.
* `weft_router_kv_handles_total` by `outcome`: `stored` (a round left a handle), `used` (a remote prefill read the
  history by it), `superseded` (the next round ran locally, where the cache has it), `closed` (the client ended the
  session), `expired`, `history_changed` (the next prompt did not continue what the engine saw), `ids_differ` (its
  token ids did not; the prefill was repeated), `refused` and `lost` (the prefill worker would not read, or broke),
  `malformed`, `yielded` (given back before its time, as the engine was full and requests waited), `orphaned`
  (prefilled KV that no decode engine is known to have taken: it refused or failed, or the client left; it waits for
  its lease).
* `weft_router_history_tokens_total` by `kind`: `read` (came from the decode worker), `cached` (was where it was
  needed), `recomputed`. KV bytes and `read` come from token counts: an engine reports its own cache and what it read
  as one figure, and what the session left in its cache earlier is taken off.
* `weft_router_recomputed_tokens_total` by `reason`: `evicted` (the engine that should have them did not, in GPU memory
  or in a tier; the last block of a history, which is not full, counts here, too), `moved` (the session came to another
  decode worker, without its KV or with a part of it), `handle_expired`, `history_changed`, `no_handle` (the round
  before left none) and `not_read` (the prefill worker could not read by the handle); the last four of remote prefills
  only.
* `weft_router_kv_saved_seconds_total` by `tier` (`cpu`, `disk`, `remote`): T_pre of the tokens that a round loaded from
  the tier, less T_load, never below 0. It counts at the end of rounds that the session's own decode worker prefilled,
  where KV events say which tier has the history, and no more tokens than the engine says were cached.
* `weft_router_kv_disk_*`: the [tier of files](../kv-cache.md) of this worker, as its sidecar `kv-disk` reports it.
  `weft_router_kv_disk_faults` by `fault`: `disk-full`, `disk-slow`, `disk-failed`, `disk-silent` (no report).
* `weft_router_rejected_total` by `reason`: `requests`, `tokens`, `concurrency` (of one key; also in
  `weft_router_rate_limited_total`), `class-concurrency`, `class-queue`, `share` (of a tenant), `full`,
  `predicted-ttft` (the first token would come too late) and `predicted-itl` (tokens would be too slow; both counted by
  the decode worker), `no-worker`, `quarantined` (the same request ended an engine before).
* `weft_router_engine_deaths_total` by `verdict`, counted by the decode worker: `engine-died` (well on its way, goes on
  elsewhere), `engine-died-suspect` (one of several that may have ended the engine, sent once more),
  `engine-died-poison` (ended it: refused and quarantined), `engine-died-again` (was sent once more before: not again).
* `weft_router_connections_cut_total` by `reason`: `too many` (`limits.maxConnections`), `slow headers`, `slow body`,
  `slow reader`, `slow close`, `idle` (between two requests, which is no fault).
* `weft_router_no_room_total` by `what`: `refused` (requests for which `limits.maxBytesInFlight` had no room), `ended`
  (unfinished requests and unread answers that had to make room); `weft_router_client_bytes` says how full it is.
* `weft_router_ejections_total` by `reason`: `failed` (a connection to it broke), `unreachable`, `not-ready` (by a
  probe); `weft_router_rebinds_total` by `reason`: the session's worker was `gone`, `draining` (for its end, or for
  another role), `role` (it does not decode any more) or `failed`.
* `role` of a worker's series is the role in force when they were counted: `prefill`, `decode` or `both`. In
  `weft_router_workers`, `role` is a duty: a worker with the role `both` counts under `prefill` and under `decode`.
* While a worker drains: `weft_router_draining` is 1 and `weft_router_drain_left` by `what` counts `rounds` and
  `sessions`. `weft_router_sessions_moved_total` is counted by the worker that takes a session over, as the other one
  is gone soon; `weft_router_resumes_total` of coordinators counts the streams that the deadline moved.
* `weft_router_kv_events_total` by `outcome`: `applied`, `malformed` (cannot be read; all that was known is forgotten),
  `restarted` (numbers began again: another engine, or disorder), `replayed` (missed batches came on request), `lost`
  (they did not, and all that was known is forgotten). `weft_router_kv_events_refused_total` by `reason`:
  `unknown-event` and `unknown-tier` (of a newer engine), `other-group` (layers with windows), `hash-only` (a tier has a
  block that is not known), `unaligned` (not a token for each place of each block), `block-size` (another one than
  before), `unknown-parent` (what is before the block was missed), `full`.
* `weft_router_kv_events_trusted` is 0 where the worker's engine sends no KV events, while they disagree with the rounds
  that it serves (`kv_events_disagree` in the log), and before the first agreed. Coordinators then estimate its prefix
  cache; `weft_router_prefix_sources` by `source` (`events`, `estimate`) counts the decode workers of both kinds, where
  a binding reads prefix caches.
* `weft_router_kv_predictions_total` by `outcome`: the engine found as many tokens of a prompt cached as its KV events
  said when the round arrived, give or take a block (`within-block`), or more (`low`), or fewer (`high`).
* `weft_router_handle_releases_total` by `outcome`: `released`, `failed`, `dropped` (too many at once), `nobody` (there
  was no worker to read it).
* `weft_router_kv_proofs_total` by `outcome`: `proven`, `data-port` (nobody answered where the data goes), `transfer`
  (the KV did not come for another reason), `transport` (it came over TCP where RDMA is expected), `unproven` (an engine
  had no time).
* What replanning reads: `arrivals` (rate by phase: `first` is the arrival of sessions; rounds that still run count,
  refused ones and further attempts of the same round do not), `rounds`, `round_index` (how many sessions
  reached each round: the distribution of rounds without waiting for sessions to end), `session_rounds`,
  `round_history_tokens`, `increment_tokens`, `decode_tokens`, `round_gap_seconds`.

| name | type | labels | meaning |
| --- | --- | --- | --- |
"""


def reference() -> str:
    """Return the reference page: every metric with its type, labels and meaning."""
    rows = []
    for metric in Metrics().catalogue:
        suffix = "_total" if metric.kind == "counter" else ""
        labels = ", ".join(f"`{name}`" for name in metric.label_names) or "none"
        rows.append(f"| `{metric.name}{suffix}` | {metric.kind} | {labels} | {metric.documentation} |")
    for name, documentation in PROCESS.items():
        kind, suffix = ("counter", "_total") if name == "process_cpu_seconds" else ("gauge", "")
        rows.append(f"| `{name}{suffix}` | {kind} | none | {documentation} |")
    return _PAGE + "\n".join(sorted(rows)) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
