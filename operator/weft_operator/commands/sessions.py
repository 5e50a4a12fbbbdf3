"""The command ``weft sessions``: the sessions of each worker and the cost of losing it, or each session and its KV."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from weft_cli.output import emit, output_option
from weft_operator.commands import cluster
from weft_operator.commands.session_rows import MOST, ORDERS, read_sessions, rows_text

if TYPE_CHECKING:
    from weft_operator.commands.fleet_view import WorkerRow

NO_FIGURES = "no worker reports its sessions yet: workers do so through Redis (the chart's redis.*), once they serve"


@click.command()
@cluster.service_argument
@cluster.namespace_options
@click.option("--each", is_flag=True, help="List the sessions themselves, and where the KV of each is.")
@click.option(
    "--sort",
    type=click.Choice(tuple(ORDERS)),
    default="tokens",
    show_default=True,
    help="With --each: most tokens, longest idle, most rounds, or the handle that ends first.",
)
@click.option(
    "--limit", type=click.IntRange(1, MOST), default=50, show_default=True, help="With --each: the most rows."
)
@click.option("--session", default="", metavar="HASH", help="With --each: sessions whose hash begins so.")
@output_option
def sessions(*, name: str, namespace: str | None, each: bool, sort: str, limit: int, session: str, output: str) -> int:
    """Show how many sessions each worker has, and what losing it would cost.

    Workers are in the order of scale-in: fewest KV tokens first, then fewest live rounds, then longest idle.

    With --each: the sessions by the hashes that logs name them with, the worker, the tokens that have KV, how many
    of them are in each tier and nowhere where the engine's KV events tell (otherwise gpu while a handle keeps them
    there), how long the handle lasts, and when the last round ended.
    The routers beside the workers are asked by `kubectl exec`'s API, so your account needs the right to create
    pods/exec. Exit status 1 when no pod could be read.
    """
    from weft_operator.commands.fleet_view import groups_of, workers_of

    api = cluster.connect_to_cluster()
    where = cluster.namespace_of(namespace)
    cluster.service(api, name, where)
    with cluster.api_errors():
        pods = cluster.pods_of(api, name, where)
        found = [] if each else workers_of(groups_of(api, name, where), pods)
    if each:
        rows, total, faults = read_sessions(api, pods, sort=sort, limit=limit, session=session)
        listed = {"service": name, "namespace": where, "total": total, "sessions": rows, "unread": faults}
        emit(output, listed, lambda: rows_text(rows, total, faults))
        return 1 if faults and not total else 0
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
