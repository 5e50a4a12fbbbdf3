"""The command ``weft sessions``: the sessions of each worker, and the cost of losing it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from weft_cli.output import emit, output_option
from weft_operator.commands import cluster

if TYPE_CHECKING:
    from weft_operator.commands.fleet_view import WorkerRow

NO_FIGURES = "no worker reports its sessions yet: workers do so through Redis (the chart's redis.*), once they serve"


@click.command()
@cluster.service_argument
@cluster.namespace_options
@output_option
def sessions(*, name: str, namespace: str | None, output: str) -> int:
    """Show how many sessions each worker has, and what losing it would cost.

    Workers are in the order of scale-in: fewest KV tokens first, then fewest live rounds, then longest idle.
    Sessions are counted, never named.
    """
    from weft_operator.commands.fleet_view import groups_of, workers_of

    api = cluster.connect_to_cluster()
    where = cluster.namespace_of(namespace)
    cluster.service(api, name, where)
    with cluster.api_errors():
        found = workers_of(groups_of(api, name, where), cluster.pods_of(api, name, where))
    body = {"service": name, "namespace": where, "workers": [worker.to_json() for worker in by_cost_of_loss(found)]}
    emit(output, body, lambda: sessions_text(found))
    return 0


def by_cost_of_loss(workers: "Sequence[WorkerRow]") -> "list[WorkerRow]":
    """Return the workers of each role by the cost of losing them, the cheapest first."""

    def cost(worker: "WorkerRow") -> tuple[bool, bool, int, int, int, str]:
        figures_of = worker.figures
        kv, live, idle = (figures_of.get(key, 0) for key in ("kvTokens", "liveRounds", "idleSeconds"))
        return worker.role != "prefill", worker.state == "ready", kv, live, -idle, worker.name

    return sorted(workers, key=cost)


def sessions_text(workers: "Sequence[WorkerRow]") -> str:
    """Return the table as text."""
    from weft_operator.commands.tables import lines, table, text_of

    if not workers:
        return "there is no worker"
    titles = ("worker", "role", "degree", "pool", "node", "state", "sessions", "live rounds", "KV tokens", "idle")
    rows = []
    for item in by_cost_of_loss(workers):
        figures_of = item.figures
        idle = f"{figures_of['idleSeconds']} s" if "idleSeconds" in figures_of else "-"
        counted = (str(figures_of.get(key, "-")) for key in ("sessions", "liveRounds", "kvTokens"))
        rows.append((item.name, item.role, str(item.degree), item.pool or "-", item.node, item.state, *counted, idle))
    total = {key: sum(item.figures.get(key, 0) for item in workers) for key in ("sessions", "liveRounds")}
    summary = f"{total['sessions']} sessions, {total['liveRounds']} rounds being answered"
    if not any(item.figures for item in workers):
        summary = NO_FIGURES
    return text_of(table(titles, rows, right=titles[6:]), lines(summary))
