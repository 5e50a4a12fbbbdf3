"""The command ``weft top``: the current load of every pod of a service, from two scrapes of its metrics."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import click

from weft_cli.output import emit, output_option
from weft_operator.commands import cluster

if TYPE_CHECKING:
    from weft_operator.api.objects import Manifest
    from weft_operator.kube.client import KubeClient

PARALLEL_READS = 8
"""Pods that are read at the same time: behind a network policy that drops packets each takes 15 s to time out."""

Page = Mapping[str, float]
"""Samples of a metrics page by name, summed over all labels."""

GAUGES = {
    "inFlight": "weft_router_inflight",
    "queue": "weft_router_queue_length",
    "sessions": "weft_router_sessions",
}
RATES = {
    "roundsPerSecond": "weft_router_rounds_total",
    "requestsPerSecond": "weft_router_requests_total",
    "tokensPerSecond": "weft_router_decode_tokens_sum",
}
MEANS = {
    "ttftSeconds": "weft_router_ttft_seconds",
    "itlSeconds": "weft_router_itl_seconds",
    "queueSeconds": "weft_router_queue_seconds",
}


@click.command()
@cluster.service_argument
@cluster.namespace_options
@click.option(
    "--interval", type=click.FloatRange(0.1, 600), default=2.0, show_default=True, help="Seconds between the scrapes."
)
@output_option
def top(*, name: str, namespace: str | None, interval: float, output: str) -> int:
    """Show the current load of every pod: requests, queue, sessions, rounds and tokens a second, TTFT, ITL.

    Each pod's metrics are read twice through the API server. Exit status 1 when no pod could be read.
    """
    api = cluster.connect_to_cluster()
    where = cluster.namespace_of(namespace)
    cluster.service(api, name, where)
    with cluster.api_errors():
        pods = cluster.pods_of(api, name, where)
        memory = _memory(api, name, where)
    start = time.monotonic()
    before, faults = pages(api, pods)
    time.sleep(interval)
    after, later_faults = pages(api, [pod for pod in pods if pod["metadata"]["name"] in before])
    faults |= later_faults
    rows = rows_of(pods, before, after, seconds=time.monotonic() - start, memory=memory)
    emit(output, {"service": name, "namespace": where, "pods": rows}, lambda: top_text(rows, faults))
    return 0 if after or not pods else 1


def pages(api: "KubeClient", pods: "Sequence[Manifest]") -> tuple[dict[str, Page], dict[str, str]]:
    """Return the metrics of each pod that could be read, and the errors of the others."""
    from weft_operator.api.objects import name_of
    from weft_operator.commands.fleet_view import metrics_page

    found: dict[str, Page] = {}
    faults: dict[str, str] = {}
    with ThreadPoolExecutor(PARALLEL_READS) as readers:
        read = list(readers.map(lambda pod: metrics_page(api, pod), pods))
    for pod, (text, fault) in zip(pods, read, strict=True):
        if fault:
            faults[name_of(pod)] = fault
        else:
            found[name_of(pod)] = read_page(text)
    return found, faults


def read_page(text: str) -> dict[str, float]:
    """Return the samples of a page in Prometheus' text format, summed over all labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        head, _, value = line.rpartition(" ")
        name = head.partition("{")[0].strip()
        try:
            found[name] = found.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return found


def rows_of(
    pods: "Sequence[Manifest]",
    before: Mapping[str, Page],
    after: Mapping[str, Page],
    *,
    seconds: float,
    memory: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Return one row for each pod, without figures that are unknown."""
    from weft_operator.api.objects import WORKER_LABEL, labels_of, name_of
    from weft_operator.commands.fleet_view import pod_state

    rows = []
    for pod in sorted(pods, key=lambda item: (cluster.role_of(item), name_of(item))):
        name = name_of(pod)
        row: dict[str, Any] = {"pod": name, "role": cluster.role_of(pod), "state": pod_state(pod)}
        now, then = after.get(name), before.get(name)
        if now is not None:
            row |= {key: int(now[metric]) for key, metric in GAUGES.items() if metric in now}
        if now is not None and then is not None:
            row |= _between(then, now, seconds)
        kv = memory.get(labels_of(pod).get(WORKER_LABEL, ""))
        if kv is not None:
            row["kvTokens"] = kv
        rows.append(row)
    return rows


def _between(then: Page, now: Page, seconds: float) -> dict[str, float]:
    found = {}
    for key, metric in RATES.items():
        if metric in now and metric in then and now[metric] >= then[metric]:  # less: the process restarted
            found[key] = round((now[metric] - then[metric]) / seconds, 3)
    for key, metric in MEANS.items():
        count = now.get(f"{metric}_count", 0.0) - then.get(f"{metric}_count", 0.0)
        total = now.get(f"{metric}_sum", 0.0) - then.get(f"{metric}_sum", 0.0)
        if count > 0 and total >= 0:
            found[key] = round(total / count, 6)
    return found


def top_text(rows: Sequence[Mapping[str, Any]], faults: Mapping[str, str]) -> str:
    """Return the table as text."""
    from weft_operator.commands.tables import lines, seconds, table, text_of

    if not rows:
        return "there is no pod"
    titles = ("pod", "role", "state", "in flight", "queue", "sessions", "KV tokens")
    rate_titles = ("rounds/s", "tokens/s", "mean TTFT", "mean ITL")
    shown = []
    for row in rows:
        counts = [str(row.get(key, "-")) for key in ("inFlight", "queue", "sessions", "kvTokens")]
        rates = [f"{row[key]:.3g}" if key in row else "-" for key in ("roundsPerSecond", "tokensPerSecond")]
        times = [seconds(row[key]) if key in row else "-" for key in ("ttftSeconds", "itlSeconds")]
        shown.append((row["pod"], row["role"], row["state"], *counts, *rates, *times))
    messages = [f"{name}: {why}" for name, why in list(faults.items())[:3]]
    if faults:
        messages.append(
            f"{len(faults)} pods could not be read; allow the API server's address with spec.networkPolicy.workersFrom "
            "(metricsFrom for coordinators), or use `kubectl port-forward POD 8080`"
        )
    return text_of(table((*titles, *rate_titles), shown, right=(*titles[3:], *rate_titles)), lines(*messages))


def _memory(api: "KubeClient", name: str, namespace: str) -> dict[str, int]:
    from weft_operator.commands.fleet_view import groups_of, workers_of

    found = workers_of(groups_of(api, name, namespace), ())
    return {worker.name: worker.figures["kvTokens"] for worker in found if "kvTokens" in worker.figures}
