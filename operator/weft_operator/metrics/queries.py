"""What Prometheus is asked about one service, as text: a few queries, each of several figures told apart by a label.

Series are found by the labels `namespace` and `service`, which the chart's own Prometheus and its PodMonitors give to
all that the pods of a service serve, and by further ones where a server holds the series of several clusters.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

FIGURE = "figure"
"""The label that tells the figures of an answer apart."""

CLOCK = "time()"

BEAT = "weft_router_tasks"
"""A gauge that every router process has from its first scrape on: where it is, all others of that scrape are."""

PRESENCE = frozenset({"last", "samples", "steps", "hole", "before", "copies"})
"""Figures that say how well pods are seen."""

GAUGES = frozenset({"queue", "sessions_now", "kv"})
"""Figures of this moment; all others count something over a window."""

LATER = ("pool", "revision")
"""Labels that scrapers give and charts of before did not."""

LONGEST = 2500
"""Characters of a query that has several figures: the client sends it in the URL, and proxies allow a URL of 8 KiB."""

_KV_USE = "vllm:kv_cache_usage_perc|vllm:gpu_cache_usage_perc|sglang:token_usage|trtllm_kv_cache_utilization"
"""Where no engine tells this, no plan with less KV is ever used: live sessions might not fit."""

_REFUSED = "full|class-queue|share|predicted-ttft|no-worker"
"""Refusals for lack of capacity; what a configured limit refuses is no load that a plan should carry."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Lengths of the windows in whole seconds; the fast one is the end of the whole one."""

    whole: int
    fast: int

    @property
    def step(self) -> int:
        """Return the step, in seconds, at which the whole window is searched for holes."""
        return max(1, self.whole // 60)


def windows_of(window_s: float) -> Windows:
    """Return the windows of ``spec.planning.prometheus.window``: the fast one is a fifth, and no less than 15 s."""
    whole = max(1, round(window_s))
    return Windows(whole=whole, fast=min(whole, max(15, whole // 5)))


def queries(
    namespace: str,
    service: str,
    windows: Windows,
    *,
    canary_s: int | None = None,
    matchers: Sequence[tuple[str, str]] = (),
) -> tuple[str, ...]:
    """Return all queries about one service, in as few as their length allows; an answer has the label ``figure``.

    ``canary_s``: for how many seconds a plan has been on trial; then figures of single pods over these come, too.
    ``matchers``: labels with their values that every series must have, beside those of the service.
    """
    labels = dict.fromkeys([("namespace", namespace), ("service", service), *matchers])
    scope = ",".join(f"{name}={_quoted(value)}" for name, value in labels)
    figures = {
        **_presence(scope, windows),
        **_workload(scope, windows),
        **_service_level(scope, windows),
        **({} if canary_s is None else _trial(scope, canary_s)),
    }
    found: list[str] = []
    for name, query in figures.items():
        named = f'label_replace({query}, "{FIGURE}", "{name}", "", "")'
        if found and len(found[-1]) + len(named) < LONGEST:
            found[-1] += f"\nor {named}"
        else:
            found.append(named)
    return tuple(found)


def _presence(scope: str, windows: Windows) -> dict[str, str]:
    """Return how well each pod is seen.

    ``last`` is the time of its newest sample, ``samples`` how many the window holds, ``steps`` at how many steps of
    the window there was one, ``hole`` how old the newest was at the worst of them. ``before`` is there for pods that
    were seen when the window began, by the same look-up as ``_grown``. ``copies`` says how many jobs or servers scrape
    it: each of them counts every round anew. All are of the worst process of a pod.
    """
    beat = f"{BEAT}{{{_selector(scope)}}}"
    window = f"[{windows.whole}s:{windows.step}s]"
    return {
        "last": f"min by (pod) (timestamp({beat}) or max_over_time(timestamp({beat}){window}))",
        "samples": f"min by (pod) (count_over_time({beat}[{windows.whole}s]))",
        "steps": f"min by (pod) (count_over_time(timestamp({beat}){window}))",
        "hole": f"max by (pod) (max_over_time((time() - timestamp({beat})){window}))",
        "before": f"min by (pod) (timestamp({beat} offset {windows.whole}s))",
        "copies": f"max by (pod) (count by (pod, process) ({beat}))",
    }


def _workload(scope: str, windows: Windows) -> dict[str, str]:
    """Return what arrived in the window."""
    every, whole = _selector(scope), windows.whole
    first, later = _selector(scope, 'phase="first"'), _selector(scope, 'phase="later"')
    refused = _selector(scope, f'reason=~"{_REFUSED}"')
    return {
        "rounds": _grown("weft_router_rounds_total", every, whole, "phase"),
        "rounds_lately": _grown("weft_router_rounds_total", first, windows.fast),
        "refused": _grown("weft_router_rejected_total", refused, whole),
        **_histogram("index", "weft_router_round_index", every, whole),
        **_histogram("first_prompt", "weft_router_increment_tokens", first, whole),
        **_histogram("increment", "weft_router_increment_tokens", later, whole),
        **_histogram("decode", "weft_router_decode_tokens", every, whole),
        **_histogram("gap", "weft_router_round_gap_seconds", every, whole),
    }


def _service_level(scope: str, windows: Windows) -> dict[str, str]:
    """Return how the SLO was kept in both windows, and how full the workers are."""
    every, whole = _selector(scope), windows.whole
    rounds = _selector(scope, 'objective="round"')
    first, later = _selector(scope, 'phase="first"'), _selector(scope, 'phase="later"')
    decode = _selector(scope, 'component="decode"')
    kv = _selector(scope, f'__name__=~"{_KV_USE}"')
    return {
        "slow": _grown("weft_router_slo_rounds_total", every, whole, "class, objective, outcome"),
        "fast": _grown("weft_router_slo_rounds_total", rounds, windows.fast, "class, outcome"),
        "sessions": _grown("weft_router_slo_sessions_total", every, whole, "class, outcome"),
        "ttft_first": _grown("weft_router_ttft_seconds_bucket", first, whole, "le"),
        "ttft_later": _grown("weft_router_ttft_seconds_bucket", later, whole, "le"),
        "itl": _grown("weft_router_itl_seconds_bucket", every, whole, "le"),
        "wait": _grown("weft_router_queue_seconds_bucket", every, whole, "le"),
        "queue": f"sum(weft_router_queue_length{{{every}}})",
        "sessions_now": f"sum(weft_router_sessions{{{decode}}})",
        "kv": f"max by (component) ({{{kv}}})",
    }


def _trial(scope: str, seconds: int) -> dict[str, str]:
    """Return what each pod did; the operator knows which of them are of which plan."""
    every, rounds = _selector(scope), _selector(scope, 'objective="round"')
    return {
        "pod_rounds": _grown("weft_router_slo_rounds_total", rounds, seconds, "pod, outcome"),
        "pod_ttft": _grown("weft_router_ttft_seconds_bucket", every, seconds, "pod, le"),
        "pod_itl": _grown("weft_router_itl_seconds_bucket", every, seconds, "pod, le"),
    }


def _selector(scope: str, *more: str) -> str:
    return ",".join((scope, *more))


def _quoted(value: str) -> str:
    """Return a string of PromQL; its escapes are Go's, which knows JSON's but for pairs of surrogates."""
    return json.dumps(value, ensure_ascii=False)


def _histogram(name: str, metric: str, selector: str, window: int) -> dict[str, str]:
    return {
        name: _grown(f"{metric}_bucket", selector, window, "le"),
        f"{name}_sum": _grown(f"{metric}_sum", selector, window),
    }


def _grown(metric: str, selector: str, window: int, by: str = "") -> str:
    """Return by how much a counter grew in the window, over all pods.

    ``increase`` knows nothing of what a series counted before its first sample: the first rounds of a new pod, or of
    a class. One that was not there when the window began was 0 then, so it counts as it stands. One that only has
    ``LATER`` labels more than when the window began is the same counter: scrapers got a newer chart meanwhile.
    """
    series = f"{metric}{{{selector}}}"
    grown, now = f"increase({series}[{window}s])", f"last_over_time({series}[{window}s])"
    before = f"ignoring({','.join(LATER)}) {series} offset {window}s"
    grown = f"({grown} and {before}) or ({now} unless {before})"
    return f"sum by ({by}) ({grown})" if by else f"sum({grown})"
