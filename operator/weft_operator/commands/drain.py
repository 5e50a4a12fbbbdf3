"""The command ``weft drain``: drain and replace one worker."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from weft_cli.output import emit, output_option
from weft_operator.api.objects import (
    DRAIN_ANNOTATION,
    DRAIN_REQUESTED,
    SERVICE_LABEL,
    WORKER_LABEL,
    Manifest,
    labels_of,
    name_of,
)
from weft_operator.commands import cluster

if TYPE_CHECKING:
    from weft_operator.kube.client import KubeClient

POLL_S = 1.0
TIMED_OUT = 3


@click.command()
@cluster.worker_argument
@cluster.namespace_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until its pods are gone.")
@click.option("--timeout", type=click.FloatRange(min=0), default=900.0, show_default=True, help="Seconds to wait.")
@output_option
def drain(*, pod: str, namespace: str | None, yes: bool, wait: bool, timeout: float, output: str) -> int:
    """Drain one worker; another worker replaces it.

    The worker gets no new sessions; its live rounds finish and its other sessions migrate before its pods end. POD is a
    pod of the worker, or the worker's name in `weft sessions`. If the plan has fewer workers than there are, this one
    is removed without a replacement. Exit status 3 if its pods still exist after the timeout.
    """
    from weft_operator.commands.fleet_view import groups_of, service_of, worker_pods, workers_of

    api = cluster.connect_to_cluster()
    where = cluster.namespace_of(namespace)
    with cluster.api_errors():
        every = api.list("v1", "Pod", namespace=where, selector=SERVICE_LABEL)
        mine = worker_pods(every, pod)
        if not mine:
            raise click.ClickException(_not_found(pod, where, every))
        worker, service = labels_of(mine[0])[WORKER_LABEL], service_of(mine[0])
        known = {item.name: item for item in workers_of(groups_of(api, service, where), every)}
    seen = known.get(worker)
    figures = ", ".join(
        f"{seen.figures[key]} {title}"
        for key, title in (("sessions", "sessions"), ("liveRounds", "live rounds"), ("kvTokens", "KV tokens"))
        if seen is not None and key in seen.figures
    )
    alone = seen is not None and not [
        item for item in known.values() if item.role == seen.role and item.name != worker and item.state == "ready"
    ]
    click.echo(f"{worker} of {service} ({figures or 'no heartbeat'})", err=True)
    if alone and seen is not None:
        click.echo(f"it is the only ready {seen.role} worker: requests wait until another one is ready", err=True)
    if not yes and not click.confirm("Drain it?", err=True):
        return 1
    with cluster.api_errors():
        for item in mine:
            _request(api, item)
    outcome = "requested"
    if wait:
        outcome = follow(
            lambda: worker_pods(cluster.pods_of(api, service, where), worker),
            uids={str(item["metadata"].get("uid")) for item in mine},
            say=lambda text: click.echo(text, err=True),
            timeout=timeout,
            clock=time.monotonic,
            sleep=time.sleep,
        )
    body: dict[str, Any] = {"worker": worker, "service": service, "namespace": where, "outcome": outcome}
    words = {
        "gone": f"{worker} is gone",
        "waiting": f"{worker} still drains after {timeout:g} s; see `weft sessions {service}`",
        "requested": f"requested the drain of {worker}; see `weft sessions {service}`",
    }
    emit(output, body, lambda: words[outcome])
    return TIMED_OUT if outcome == "waiting" else 0


def follow(
    list_pods: Callable[[], Sequence[Manifest]],
    *,
    uids: set[str],
    say: Callable[[str], object],
    timeout: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> str:
    """Poll until no pod with one of the uids exists ("gone"), or until the timeout in seconds ("waiting")."""
    deadline, last = clock() + timeout, ""
    while True:
        with cluster.api_errors():
            left = [item for item in list_pods() if str(item["metadata"].get("uid")) in uids]
        if not left:
            return "gone"
        ending = [item for item in left if item["metadata"].get("deletionTimestamp")]
        text = "draining: live rounds finish and sessions migrate" if ending else "waiting for the operator"
        if text != last:
            say(text)
            last = text
        if clock() >= deadline:
            return "waiting"
        sleep(POLL_S)


def _request(api: "KubeClient", pod: Manifest) -> None:
    from weft_operator.api.objects import key_of
    from weft_operator.errors import NotFoundError

    try:
        api.annotate(key_of(pod), {DRAIN_ANNOTATION: DRAIN_REQUESTED}, version="")
    except NotFoundError:
        return  # deleted meanwhile


def _not_found(given: str, namespace: str, pods: Sequence[Manifest]) -> str:
    names = sorted({labels_of(item).get(WORKER_LABEL, "") for item in pods} - {""})
    workers = f"its workers are {', '.join(names[:20])}" if names else "it has no worker"
    if any(name_of(item) == given for item in pods):
        return f"pod {given!r} is not a worker's; {workers}"
    return f"there is no worker or pod {given!r} in namespace {namespace!r}; {workers}"
