"""The verb ``weft drain``: let one worker go, its sessions first."""

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
@cluster.where_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until its pods are gone.")
@click.option("--timeout", type=click.FloatRange(min=0), default=900.0, show_default=True, help="Seconds to wait.")
@output_option
def drain(*, pod: str, namespace: str | None, yes: bool, wait: bool, timeout: float, output: str) -> int:
    """Let one worker go, its sessions first; another worker takes its place.

    It gets no new sessions, its live rounds finish and its other sessions move before its pods end. POD is a pod of the
    worker, or the worker as `weft sessions` names it. Where the plan has fewer workers than there are, it is the one
    that goes. Exit status 3 when the time was over before its pods were gone.
    """
    from weft_operator.commands.fleet_view import groups_of, service_of, worker_pods, workers_of

    api = cluster.reach()
    where = cluster.namespace_of(namespace)
    with cluster.telling():
        every = api.list("v1", "Pod", namespace=where, selector=SERVICE_LABEL)
        mine = worker_pods(every, pod)
        if not mine:
            raise click.ClickException(_nobody(pod, where, every))
        worker, service = labels_of(mine[0])[WORKER_LABEL], service_of(mine[0])
        known = {item.name: item for item in workers_of(groups_of(api, service, where), every)}
    seen = known.get(worker)
    told = ", ".join(
        f"{seen.figures[key]} {title}"
        for key, title in (("sessions", "sessions"), ("liveRounds", "live rounds"), ("kvTokens", "KV tokens"))
        if seen is not None and key in seen.figures
    )
    alone = seen is not None and not [
        item for item in known.values() if item.role == seen.role and item.name != worker and item.state == "ready"
    ]
    click.echo(f"{worker} of {service} ({told or 'it does not tell what it holds'})", err=True)
    if alone and seen is not None:
        click.echo(f"it is the only {seen.role} worker that is ready: requests wait until another one is", err=True)
    if not yes and not click.confirm("Drain it?", err=True):
        return 1
    with cluster.telling():
        for item in mine:
            _ask(api, item)
    outcome = "asked"
    if wait:
        outcome = follow(
            lambda: worker_pods(cluster.pods_of(api, service, where), worker),
            wanted={str(item["metadata"].get("uid")) for item in mine},
            say=lambda text: click.echo(text, err=True),
            timeout=timeout,
            clock=time.monotonic,
            sleep=time.sleep,
        )
    body: dict[str, Any] = {"worker": worker, "service": service, "namespace": where, "outcome": outcome}
    words = {
        "gone": f"{worker} is gone",
        "waiting": f"{worker} is still there after {timeout:g} s; it goes on draining, see `weft sessions {service}`",
        "asked": f"{worker} is asked to go; `weft sessions {service}` shows how far it is",
    }
    emit(output, body, lambda: words[outcome])
    return TIMED_OUT if outcome == "waiting" else 0


def follow(
    look: Callable[[], Sequence[Manifest]],
    *,
    wanted: set[str],
    say: Callable[[str], object],
    timeout: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> str:
    """Look until no pod with one of the wanted uids is there: gone, or waiting when ``timeout`` seconds are over."""
    deadline, last = clock() + timeout, ""
    while True:
        with cluster.telling():
            left = [item for item in look() if str(item["metadata"].get("uid")) in wanted]
        if not left:
            return "gone"
        ending = [item for item in left if item["metadata"].get("deletionTimestamp")]
        text = "it drains: live rounds finish and sessions move" if ending else "the operator has not begun yet"
        if text != last:
            say(text)
            last = text
        if clock() >= deadline:
            return "waiting"
        sleep(POLL_S)


def _ask(api: "KubeClient", pod: Manifest) -> None:
    from weft_operator.api.objects import key_of
    from weft_operator.errors import NotFoundError

    try:
        api.annotate(key_of(pod), {DRAIN_ANNOTATION: DRAIN_REQUESTED}, version="")
    except NotFoundError:
        return  # gone by itself meanwhile


def _nobody(given: str, namespace: str, pods: Sequence[Manifest]) -> str:
    names = sorted({labels_of(item).get(WORKER_LABEL, "") for item in pods} - {""})
    there = f"the workers there are {', '.join(names[:20])}" if names else "there is no worker in it"
    if any(name_of(item) == given for item in pods):
        return f"pod {given!r} is not a worker's; {there}"
    return f"there is no worker or pod {given!r} in namespace {namespace!r}; {there}"
