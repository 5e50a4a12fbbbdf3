"""The command ``weft rollout``: history, rollback, canary, router upgrade, and waiting for a rollout."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from weft_cli.output import emit, output_option
from weft_operator.api.objects import (
    ABORT,
    CANARY_ANNOTATION,
    PROMOTE,
    ROLLBACK_ANNOTATION,
    UPGRADE_ANNOTATION,
    Manifest,
    annotations_of,
)
from weft_operator.commands import cluster

if TYPE_CHECKING:
    from weft_operator.kube.client import KubeClient

POLL_S = 1.0
TIMED_OUT = 3


@click.group()
def rollout() -> None:
    """Show and control the rollout of a service's plans."""


@rollout.command(short_help="List the plans that were active, or show one.")
@cluster.service_argument
@cluster.namespace_options
@click.option("--revision", type=click.IntRange(min=1), metavar="N", help="Show this revision in full.")
@output_option
def history(*, name: str, namespace: str | None, revision: int | None, output: str) -> int:
    """List the plans that were active, the newest last, or show one with its inputs."""
    from weft_operator.commands.revision_pages import history_text, history_to_json, revision_text, revision_to_json

    api = cluster.connect_to_cluster()
    where = cluster.namespace_of(namespace)
    service = cluster.service(api, name, where)
    found = revisions(api, name, where)
    if revision is None:
        emit(output, history_to_json(service, found), lambda: history_text(service, found))
        return 0
    chosen = find(found, revision, name)
    emit(output, revision_to_json(chosen), lambda: revision_text(chosen))
    return 0


@rollout.command(short_help="Roll back to an older plan, and hold it.")
@cluster.service_argument
@cluster.namespace_options
@click.option("--to-revision", type=click.IntRange(min=1), metavar="N", help="Default: the previous one.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output_option
def undo(*, name: str, namespace: str | None, to_revision: int | None, yes: bool, output: str) -> int:
    """Roll back to an older plan, after showing the differences; it is held until the spec or the traffic changes."""
    from weft_operator.commands.revision_pages import undo_text

    api = cluster.connect_to_cluster()
    where = cluster.namespace_of(namespace)
    service = cluster.service(api, name, where)
    found = revisions(api, name, where)
    if not found:
        raise click.ClickException(f"{name} has no plan yet: there is nothing to roll back to")
    current = found[-1]
    if to_revision is None:
        if len(found) < 2:
            raise click.ClickException(f"{name} has had one plan only: there is nothing to roll back to")
        to_revision = int(found[-2]["revision"])
    target = find(found, to_revision, name)
    if target is current:
        raise click.ClickException(f"revision {to_revision} is active already; `weft rollout history {name}` lists all")
    asking = output != "table"  # programs read the result alone
    click.echo(undo_text(current, target), err=asking)
    if not yes and not click.confirm("Roll back to it?", err=asking):
        return 1
    _annotate(api, service, {ROLLBACK_ANNOTATION: str(to_revision)})
    body = {"service": name, "namespace": where, "from": int(current["revision"]), "to": to_revision}
    words = f"requested revision {to_revision}; `weft rollout status {name}` waits until it is rolled out"
    emit(output, body, lambda: words)
    return 0


@rollout.command(short_help="End the hold of an older plan.")
@cluster.service_argument
@cluster.namespace_options
@output_option
def resume(*, name: str, namespace: str | None, output: str) -> int:
    """End the hold of a rollback: plans follow the spec and the traffic again."""
    api = cluster.connect_to_cluster()
    where = cluster.namespace_of(namespace)
    service = cluster.service(api, name, where)
    if not annotations_of(service).get(ROLLBACK_ANNOTATION):
        raise click.ClickException(_no_hold(service))
    _annotate(api, service, {ROLLBACK_ANNOTATION: ""})
    held = annotations_of(service)[ROLLBACK_ANNOTATION]
    body = {"service": name, "namespace": where, "released": held}
    emit(output, body, lambda: "the hold ends with the operator's next pass")
    return 0


def _no_hold(service: Manifest) -> str:
    name, conditions = service["metadata"]["name"], (service.get("status") or {}).get("conditions") or ()
    if not any(item["type"] == "Planned" and item["reason"] == "RolledBack" for item in conditions):
        return f"{name} has no annotation {ROLLBACK_ANNOTATION}: no older plan was requested"
    return (
        f"the operator itself rolled {name} back, because the canary of a newer plan failed: "
        f"`weft rollout undo {name} --to-revision N` rolls that one out without a canary "
        f"(`weft rollout history {name}` lists it), and a changed spec gets a new plan"
    )


@rollout.command(short_help="End the canary of a new plan and complete its rollout.")
@cluster.service_argument
@cluster.namespace_options
@output_option
def promote(*, name: str, namespace: str | None, output: str) -> int:
    """End the canary of a new plan (spec.rollout.canary) and complete its rollout, whatever the metrics are."""
    return _end_canary(name, namespace, PROMOTE, output)


@rollout.command(short_help="End the canary of a new plan and roll back.")
@cluster.service_argument
@cluster.namespace_options
@output_option
def abort(*, name: str, namespace: str | None, output: str) -> int:
    """End the canary of a new plan (spec.rollout.canary) and roll back to the old plan, which is held."""
    return _end_canary(name, namespace, ABORT, output)


def _end_canary(name: str, namespace: str | None, word: str, output: str) -> int:
    api = cluster.connect_to_cluster()
    where = cluster.namespace_of(namespace)
    service = cluster.service(api, name, where)
    canary: Mapping[str, Any] = (service.get("status") or {}).get("canary") or {}
    if canary.get("state") != "Running":
        raise click.ClickException(f"{name} has no canary: see `weft rollout status {name}`")
    _annotate(api, service, {CANARY_ANNOTATION: f"{word} {canary['hash']}"})
    body = {"service": name, "namespace": where, "plan": canary["plan"], "hash": canary["hash"], "requested": word}
    words = f"requested to {word} {canary['plan']}; `weft rollout status {name}` waits until that is done"
    emit(output, body, lambda: words)
    return 0


@rollout.command(short_help="Change a service's pods to the operator's router image.")
@cluster.service_argument
@cluster.namespace_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output_option
def upgrade(*, name: str, namespace: str | None, yes: bool, output: str) -> int:
    """Change the pods of a service to the router image that the operator brings; workers restart one by one.

    An upgrade of Weft itself restarts no worker: a service keeps its router until this, or until all its workers
    restart for another reason.
    """
    api = cluster.connect_to_cluster()
    where = cluster.namespace_of(namespace)
    service = cluster.service(api, name, where)
    router: Mapping[str, Any] = (service.get("status") or {}).get("router") or {}
    body = {"service": name, "namespace": where, "from": router.get("image"), "to": router.get("offered")}
    if not router:
        raise click.ClickException(f"the status of {name} names no router yet: wait until it is planned")
    if "offered" not in router:
        emit(
            output, {**body, "requested": False}, lambda: f"{name} has the operator's router already: {router['image']}"
        )
        return 0
    if not yes:
        click.echo(
            f"{router['image']} → {router['offered']}: every pod of {name} is replaced, drained by session", err=True
        )
        if not click.confirm("Change to it?", err=True):
            return 1
    _annotate(api, service, {UPGRADE_ANNOTATION: router["offered"]})
    words = f"asked for {router['offered']}; `weft rollout status {name}` waits until it is carried out"
    emit(output, {**body, "requested": True}, lambda: words)
    return 0


@rollout.command(short_help="Wait until spec and plan are carried out.")
@cluster.service_argument
@cluster.namespace_options
@click.option("--timeout", type=click.FloatRange(min=0), default=600.0, show_default=True, help="Seconds to wait.")
@output_option
def status(*, name: str, namespace: str | None, timeout: float, output: str) -> int:
    """Wait until the newest spec and plan are carried out, and say what it waits for meanwhile.

    Exit status: 0 done; 1 it cannot go on without somebody; 3 the time was over first.
    """
    api = cluster.connect_to_cluster()
    where = cluster.namespace_of(namespace)
    say = click.echo if output == "table" else lambda _text: None
    found, verdict, message = follow(
        lambda: cluster.service(api, name, where), say=say, timeout=timeout, clock=time.monotonic, sleep=time.sleep
    )
    body = {"service": name, "namespace": where, "outcome": verdict, "message": message}
    conditions = (found.get("status") or {}).get("conditions") or []
    canary = (found.get("status") or {}).get("canary")
    if canary is not None:
        body["canary"] = canary
    emit(output, {**body, "conditions": conditions}, lambda: message)
    return {"done": 0, "stopped": 1}.get(verdict, TIMED_OUT)


def follow(
    look: Callable[[], Manifest],
    *,
    say: Callable[[str], object],
    timeout: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> tuple[Manifest, str, str]:
    """Look at a service until it is as its plan wants it; return the last look, done, stopped or waiting, and why.

    ``timeout`` are seconds; ``say`` is called each time what it waits for changes.
    """
    deadline, last = clock() + timeout, ""
    while True:
        found = look()
        verdict, message = judged(found)
        if verdict != "waiting":
            return found, verdict, message
        if message != last:
            say(message)
            last = message
        if clock() >= deadline:
            return found, verdict, f"the time is over, and it still waits: {message}"
        sleep(POLL_S)


def judged(service: Manifest) -> tuple[str, str]:
    """Return done, stopped or waiting for one look at a service, and why."""
    status_: Mapping[str, Any] = service.get("status") or {}
    conditions = {item["type"]: item for item in status_.get("conditions") or ()}
    generation = int(service["metadata"].get("generation", 0))
    token = annotations_of(service).get(ROLLBACK_ANNOTATION, "")
    if not conditions:
        return "waiting", "no operator has looked at it yet"
    planned, moving, ready = (conditions.get(kind, {}) for kind in ("Planned", "Progressing", "Ready"))
    said = {kind: f"{kind} {item.get('reason')}: {item.get('message', '')}" for kind, item in conditions.items()}
    if int(status_.get("observedGeneration") or 0) < generation and planned.get("status") == "Unknown":
        return "waiting", said["Planned"]
    if int(status_.get("observedGeneration") or 0) < generation:
        return "waiting", f"the operator has not acted on generation {generation} of the spec yet"
    if planned.get("status") == "False" or planned.get("reason") in ("RollbackRevisionNotFound", "RollbackRefused"):
        return "stopped", said["Planned"]
    if planned.get("status") == "Unknown" or planned.get("reason") == "Replanning":
        return "waiting", said["Planned"]
    if token and planned.get("reason") == "SessionsDoNotFit":
        return "waiting", said["Planned"]
    if moving.get("status") == "True":
        return "waiting", said["Progressing"]
    if moving.get("reason") not in ("UpToDate", None):
        return "stopped", said["Progressing"]
    if ready.get("status") != "True":
        return "waiting", said.get("Ready", "it is not ready")
    number = (status_.get("plan") or {}).get("number")
    revision = f", revision {number}" if number else ""
    return "done", f"{status_.get('planSummary', 'the plan')}{revision} is carried out ({planned.get('reason')})"


def revisions(api: "KubeClient", name: str, namespace: str) -> list[Manifest]:
    """Return the kept plan revisions of a service, the active one last."""
    with cluster.api_errors():
        found = cluster.of_service(
            api, "apps/v1", "ControllerRevision", name, namespace, also="app.kubernetes.io/component=plan"
        )
    return sorted(found, key=lambda item: int(item["revision"]))


def find(found: Sequence[Manifest], number: int, name: str) -> Manifest:
    """Return the revision of a number.

    Raises:
        click.ClickException: it is not kept.
    """
    for item in found:
        if int(item["revision"]) == number:
            return item
    kept = ", ".join(str(item["revision"]) for item in found) or "none"
    raise click.ClickException(
        f"{name} keeps no revision {number}; it keeps {kept} (spec.planning.revisionHistoryLimit)"
    )


def _annotate(api: "KubeClient", service: Manifest, annotations: Mapping[str, str]) -> None:
    from weft_operator.errors import ConflictError

    metadata = service["metadata"]
    key = cluster.service_key(metadata["name"], metadata["namespace"])
    try:
        with cluster.api_errors():
            api.annotate(key, annotations, version=str(metadata["resourceVersion"]))
    except click.ClickException as error:
        if isinstance(error.__cause__, ConflictError):
            raise click.ClickException(f"{metadata['name']} was changed meanwhile; look at it and try again") from error
        raise
