"""The verb ``weft sessions``: which worker holds how many sessions, and what losing it would cost."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from weft_cli.output import emit, output_option
from weft_operator.commands import cluster

if TYPE_CHECKING:
    from weft_operator.commands.fleet_view import WorkerRow

UNTOLD = "no worker tells of its sessions yet: they do so by Redis (the chart's redis.*), once they serve"


@click.command()
@cluster.service_argument
@cluster.where_options
@output_option
def sessions(*, name: str, namespace: str | None, output: str) -> int:
    """Show how many sessions each worker holds, and what losing it would cost.

    Who is named first would go first in a scale-in: fewest KV tokens, then fewest live rounds, then longest idle.
    Sessions are counted, never named.
    """
    from weft_operator.commands.fleet_view import groups_of, workers_of

    api = cluster.reach()
    where = cluster.namespace_of(namespace)
    cluster.service(api, name, where)
    with cluster.telling():
        found = workers_of(groups_of(api, name, where), cluster.pods_of(api, name, where))
    body = {"service": name, "namespace": where, "workers": [worker.to_json() for worker in in_order(found)]}
    emit(output, body, lambda: sessions_text(found))
    return 0


def in_order(workers: "Sequence[WorkerRow]") -> "list[WorkerRow]":
    """Return the workers of each role by what losing them would cost, the cheapest first."""

    def cost(worker: "WorkerRow") -> tuple[bool, bool, int, int, int, str]:
        told = worker.figures
        kv, live, idle = (told.get(key, 0) for key in ("kvTokens", "liveRounds", "idleSeconds"))
        return worker.role != "prefill", worker.state == "ready", kv, live, -idle, worker.name

    return sorted(workers, key=cost)


def sessions_text(workers: "Sequence[WorkerRow]") -> str:
    """Return the table for people."""
    from weft_operator.commands.tables import lines, table, text_of

    if not workers:
        return "there is no worker"
    titles = ("worker", "role", "degree", "pool", "node", "state", "sessions", "live rounds", "KV tokens", "idle")
    rows = []
    for item in in_order(workers):
        told = item.figures
        idle = f"{told['idleSeconds']} s" if "idleSeconds" in told else "-"
        counted = (str(told.get(key, "-")) for key in ("sessions", "liveRounds", "kvTokens"))
        rows.append((item.name, item.role, str(item.degree), item.pool or "-", item.node, item.state, *counted, idle))
    total = {key: sum(item.figures.get(key, 0) for item in workers) for key in ("sessions", "liveRounds")}
    summary = f"{total['sessions']} sessions, {total['liveRounds']} rounds being answered"
    if not any(item.figures for item in workers):
        summary = UNTOLD
    return text_of(table(titles, rows, right=titles[6:]), lines(summary))
