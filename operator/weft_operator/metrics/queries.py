"""The PromQL queries for one service: a few, each of several figures with a label that distinguishes them.

Series are selected by the labels `namespace` and `service`, which the chart's Prometheus and its PodMonitors set, and
by further matchers where a server has the series of several clusters.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from weft_operator.metrics.trigger_queries import TriggerWindow, trigger_queries

FIGURE = "figure"
"""The label that distinguishes the figures of a result."""

CLOCK = "time()"

PRESENCE_METRIC = "weft_router_tasks"
"""A gauge that every router process has from its first scrape: where it is present, the scrape was complete."""

PRESENCE = frozenset({"last", "samples", "steps", "hole", "before", "copies"})
"""Figures about the samples of each pod."""

GAUGES = frozenset({"queue", "sessions_now", "kv"})
"""Instant figures; all others but those of triggers are counts over a window."""

LATER = ("pool", "revision")
"""Labels that scrapers with an older chart do not set."""

MAX_LENGTH = 2500
"""Longest query of several figures, in characters: it is sent in the URL, and proxies allow 8 KiB."""

_KV_USE = "vllm:kv_cache_usage_perc|vllm:gpu_cache_usage_perc|sglang:token_usage|trtllm_kv_cache_utilization"
"""Without these metrics no plan with less KV capacity is used, because live sessions might not fit."""

_REFUSED = "full|class-queue|share|predicted-ttft|predicted-itl|no-worker"
"""Reasons of refusals for lack of capacity; refusals by a configured limit are not part of the load."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Lengths of the windows in whole seconds; the fast one is the end of the whole one."""

    whole: int
    fast: int

    @property
    def step(self) -> int:
        """Return the step, in seconds, at which the whole window is checked for gaps."""
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
    triggers: Sequence[TriggerWindow] = (),
) -> tuple[str, ...]:
    """Return the queries for one service, as few as their length allows; results have the label ``figure``.

    ``canary_s`` is the age of a canary in seconds; with it, figures of single pods over that time are queried, too.
    ``matchers`` are labels with values that every series must have in addition to the service's. ``triggers`` are
    loads of the workers to be queried, too.
    """
    labels = dict.fromkeys([("namespace", namespace), ("service", service), *matchers])
    scope = ",".join(f"{name}={_quoted(value)}" for name, value in labels)
    figures = {
        **_presence(scope, windows),
        **_workload(scope, windows),
        **_service_level(scope, windows),
        **({} if canary_s is None else _canary(scope, canary_s)),
        **trigger_queries(
            triggers, scope=scope, namespace=_quoted(namespace), kv_use=_KV_USE,
            matchers=[f"{name}={_quoted(value)}" for name, value in matchers],
        ),
    }  # fmt: skip
    found: list[str] = []
    for name, query in figures.items():
        named = f'label_replace({query}, "{FIGURE}", "{name}", "", "")'
        if found and len(found[-1]) + len(named) < MAX_LENGTH:
            found[-1] += f"\nor {named}"
        else:
            found.append(named)
    return tuple(found)


def _presence(scope: str, windows: Windows) -> dict[str, str]:
    """Return the queries about each pod's samples.

    ``last`` is the time of its newest sample, ``samples`` their number in the window, ``steps`` the number of steps of
    the window with a sample, ``hole`` the largest age of the newest sample at any step. ``before`` exists for pods with
    a sample at the start of the window, by the same look-up as ``_increase``. ``copies`` is the number of jobs or
    servers that scrape the pod, each of which counts every round. All are of the worst process of a pod.
    """
    present = f"{PRESENCE_METRIC}{{{_selector(scope)}}}"
    window = f"[{windows.whole}s:{windows.step}s]"
    return {
        "last": f"min by (pod) (timestamp({present}) or max_over_time(timestamp({present}){window}))",
        "samples": f"min by (pod) (count_over_time({present}[{windows.whole}s]))",
        "steps": f"min by (pod) (count_over_time(timestamp({present}){window}))",
        "hole": f"max by (pod) (max_over_time((time() - timestamp({present})){window}))",
        "before": f"min by (pod) (timestamp({present} offset {windows.whole}s))",
        "copies": f"max by (pod) (count by (pod, process) ({present}))",
    }


def _workload(scope: str, windows: Windows) -> dict[str, str]:
    """Return the queries about the traffic of the window."""
    every, whole = _selector(scope), windows.whole
    first, later = _selector(scope, 'phase="first"'), _selector(scope, 'phase="later"')
    refused = _selector(scope, f'reason=~"{_REFUSED}"')
    return {
        "arrivals": _increase("weft_router_arrivals_total", every, whole, "phase"),
        "arrivals_fast": _increase("weft_router_arrivals_total", first, windows.fast),
        "rounds": _increase("weft_router_rounds_total", every, whole, "phase"),
        "refused": _increase("weft_router_rejected_total", refused, whole),
        **_histogram("index", "weft_router_round_index", every, whole),
        **_histogram("first_prompt", "weft_router_increment_tokens", first, whole),
        **_histogram("increment", "weft_router_increment_tokens", later, whole),
        **_histogram("decode", "weft_router_decode_tokens", every, whole),
        **_histogram("gap", "weft_router_round_gap_seconds", every, whole),
        **_histogram("first_prompt_fast", "weft_router_increment_tokens", first, windows.fast),
        **_histogram("increment_fast", "weft_router_increment_tokens", later, windows.fast),
        **_histogram("decode_fast", "weft_router_decode_tokens", every, windows.fast),
    }


def _service_level(scope: str, windows: Windows) -> dict[str, str]:
    """Return the queries about the SLO in both windows, and about the load of the workers."""
    every, whole = _selector(scope), windows.whole
    rounds = _selector(scope, 'objective="round"')
    first, later = _selector(scope, 'phase="first"'), _selector(scope, 'phase="later"')
    decode = _selector(scope, 'component=~"decode|worker"')
    kv = _selector(scope, f'__name__=~"{_KV_USE}"')
    return {
        "slow": _increase("weft_router_slo_rounds_total", every, whole, "class, objective, outcome"),
        "fast": _increase("weft_router_slo_rounds_total", rounds, windows.fast, "class, outcome"),
        "sessions": _increase("weft_router_slo_sessions_total", every, whole, "class, outcome"),
        "ttft_first": _increase("weft_router_ttft_seconds_bucket", first, whole, "le"),
        "ttft_later": _increase("weft_router_ttft_seconds_bucket", later, whole, "le"),
        "itl": _increase("weft_router_itl_seconds_bucket", every, whole, "le"),
        "wait": _increase("weft_router_queue_seconds_bucket", every, whole, "le"),
        "queue": f"sum(weft_router_queue_length{{{every}}})",
        "sessions_now": f"sum(weft_router_sessions{{{decode}}})",
        "kv": f"max by (component) ({{{kv}}})",
    }


def _canary(scope: str, seconds: int) -> dict[str, str]:
    """Return the queries about each pod; the operator knows which pods are of which plan."""
    every, rounds = _selector(scope), _selector(scope, 'objective="round"')
    return {
        "pod_rounds": _increase("weft_router_slo_rounds_total", rounds, seconds, "pod, outcome"),
        "pod_ttft": _increase("weft_router_ttft_seconds_bucket", every, seconds, "pod, le"),
        "pod_itl": _increase("weft_router_itl_seconds_bucket", every, seconds, "pod, le"),
    }


def _selector(scope: str, *more: str) -> str:
    return ",".join((scope, *more))


def _quoted(value: str) -> str:
    """Return a PromQL string: Go's escapes include JSON's except for surrogate pairs, which are not escaped here."""
    return json.dumps(value, ensure_ascii=False)


def _histogram(name: str, metric: str, selector: str, window: int) -> dict[str, str]:
    return {
        name: _increase(f"{metric}_bucket", selector, window, "le"),
        f"{name}_sum": _increase(f"{metric}_sum", selector, window),
    }


def _increase(metric: str, selector: str, window: int, by: str = "") -> str:
    """Return the query for the increase of a counter in the window, over all pods.

    ``increase`` ignores what a series counted before its first sample, such as the first rounds of a new pod or class.
    So a series that did not exist at the start of the window counts with its value. A series that differs from one at
    the start only by ``LATER`` labels is the same counter: the scrapers' chart was upgraded meanwhile.
    """
    series = f"{metric}{{{selector}}}"
    increase, now = f"increase({series}[{window}s])", f"last_over_time({series}[{window}s])"
    before = f"ignoring({','.join(LATER)}) {series} offset {window}s"
    increase = f"({increase} and {before}) or ({now} unless {before})"
    return f"sum by ({by}) ({increase})" if by else f"sum({increase})"
