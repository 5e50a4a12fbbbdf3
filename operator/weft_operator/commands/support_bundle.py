"""The command ``weft support-bundle``: diagnostic data of one service in one file, without secrets."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft_cli.output import emit, output_option
from weft_operator.api.objects import PICKER_COMPONENT, Manifest, ObjectKey, key_of, name_of, timestamp
from weft_operator.commands import cluster

if TYPE_CHECKING:
    from weft_operator.kube.client import KubeClient

MAX_LINES = 5_000
OPERATORS = "app.kubernetes.io/name=weft,app.kubernetes.io/component=operator"
README = """\
Support bundle of the service {service} in namespace {namespace}, made by weft {version} at {made}.

summary.txt         the output of `weft status`, with the remedies of its conditions
objects/            the service and the operator's objects for it, without managed fields and values of variables
plans.json          the plans that were active
events.json         Events of the service and its objects, the newest last
metrics/            metrics of routers and engines, of each pod that could be read
logs/               the newest lines of each container; of the operator's log those that name this service
faults.txt          what could not be read, and why

It contains no Secrets. Values of environment variables, everything that looks like a token, a key or a password, and
prompts and answers are left out. Review it before you share it.
"""


@click.command()
@cluster.service_argument
@cluster.namespace_options
@click.option(
    "--file", "path", type=click.Path(), metavar="FILE", help="Default: weft-SERVICE-TIME.tar.gz in this folder."
)
@click.option("--tail", type=click.IntRange(1, MAX_LINES), default=1000, show_default=True, help="Lines of each log.")
@click.option(
    "--engine-logs", is_flag=True, help="Include engines' logs: some engines log prompts, which are redacted."
)
@output_option
def support_bundle(
    *, name: str, namespace: str | None, path: str | None, tail: int, engine_logs: bool, output: str
) -> int:
    """Write diagnostic data of a service into one file, without secrets, prompts and tokens.

    Sources that may not be read, or do not answer, are named in the file. Exit status 1 when it cannot be written.
    """
    from datetime import UTC, datetime

    api = cluster.connect_to_cluster()
    where = cluster.namespace_of(namespace)
    service = cluster.service(api, name, where)
    made = datetime.now(UTC)
    files, faults = collect(api, service, made=timestamp(made), tail=tail, engines=engine_logs)
    target = Path(path or f"weft-{name}-{made.strftime('%Y%m%dT%H%M%SZ')}.tar.gz")
    try:
        write(target, files, folder=f"weft-{name}", made=made.timestamp())
    except OSError as error:
        raise click.ClickException(f"{target}: {error.strerror or error}; name another one with --file") from error
    body = {"file": str(target), "files": sorted(files), "faults": faults}
    emit(output, body, lambda: _result_text(target, files, faults))
    return 0


def collect(
    api: "KubeClient", service: Manifest, *, made: str, tail: int, engines: bool
) -> tuple[dict[str, str], list[str]]:
    """Return the texts of the bundle by path, and what could not be read."""
    from importlib.metadata import version

    name, namespace = name_of(service), str(service["metadata"]["namespace"])
    faults: list[str] = []
    known_secrets = _known_secrets(api, service)
    found = _objects(api, name, namespace, faults)
    files: dict[str, str] = {
        "README.txt": README.format(service=name, namespace=namespace, version=version("weft"), made=made),
        **_object_files([service, *found], known_secrets),
        "plans.json": _plans(api, service, known_secrets, faults),
        "events.json": _events(api, service, found, known_secrets, faults),
    }
    pods = [item for item in found if item["kind"] == "Pod"]
    files |= _metrics(api, pods, known_secrets, faults)
    files |= _logs(api, pods, known_secrets, faults, tail=tail, engines=engines)
    files |= _operator_logs(api, f"{namespace}/{name}", known_secrets, faults)
    files["summary.txt"] = _summary(service, known_secrets)
    files["faults.txt"] = "".join(f"{_redacted(fault, known_secrets)}\n" for fault in faults) or "all could be read\n"
    return files, [_redacted(fault, known_secrets) for fault in faults]


def write(target: Path, files: Mapping[str, str], *, folder: str, made: float) -> None:
    """Write the files into a compressed archive that only its owner may read; ``made`` in seconds since the epoch."""
    import io
    import os
    import tarfile

    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for path, text in sorted(files.items()):
            body = text.encode(errors="replace")
            entry = tarfile.TarInfo(f"{folder}/{path}")
            entry.size, entry.mtime, entry.mode = len(body), int(made), 0o600
            archive.addfile(entry, io.BytesIO(body))


def _objects(api: "KubeClient", name: str, namespace: str, faults: list[str]) -> list[Manifest]:
    """Return the objects with the service's label, except Secrets and plan revisions, which are read separately."""
    from weft_operator.errors import ApiError
    from weft_operator.kube.observe import OWNED_KINDS

    found: list[Manifest] = []
    for api_version, kind in (*OWNED_KINDS, ("v1", "Pod")):
        if kind == "ControllerRevision":
            continue
        try:
            found.extend(cluster.of_service(api, api_version, kind, name, namespace))
        except ApiError as error:
            faults.append(f"{kind}: {error}")
    return found


def _object_files(objects: Iterable[Manifest], known_secrets: Sequence[str]) -> dict[str, str]:
    import yaml

    from weft_operator.commands.redaction import redact_object

    return {
        f"objects/{item['kind'].lower()}-{name_of(item)}.yaml": yaml.safe_dump(
            redact_object(item, known_secrets), sort_keys=False, allow_unicode=True, width=120
        )
        for item in objects
    }


def _plans(api: "KubeClient", service: Manifest, known_secrets: Sequence[str], faults: list[str]) -> str:
    from weft_operator.commands.revision_pages import history_to_json
    from weft_operator.commands.rollout import revisions
    from weft_operator.errors import ApiError

    try:
        found = revisions(api, name_of(service), service["metadata"]["namespace"])
    except (click.ClickException, ApiError) as error:
        faults.append(f"ControllerRevision: {error}")
        found = []
    return _redacted(json.dumps(history_to_json(service, found), indent=2), known_secrets) + "\n"


def _events(
    api: "KubeClient", service: Manifest, objects: Sequence[Manifest], known_secrets: Sequence[str], faults: list[str]
) -> str:
    from weft_operator.errors import ApiError

    names = {name_of(item) for item in (service, *objects)}
    try:
        events = api.list("v1", "Event", namespace=service["metadata"]["namespace"])
    except ApiError as error:
        faults.append(f"Event: {error}")
        events = []
    related = [item for item in events if (item.get("involvedObject") or {}).get("name") in names]
    shown = [
        {
            "at": item.get("lastTimestamp") or item.get("eventTime") or item.get("firstTimestamp"),
            "object": f"{item['involvedObject'].get('kind')} {item['involvedObject'].get('name')}",
            "type": item.get("type"),
            "reason": item.get("reason"),
            "count": item.get("count", 1),
            "message": _redacted(str(item.get("message", "")), known_secrets),
        }
        for item in related
    ]
    return json.dumps(sorted(shown, key=lambda item: str(item["at"])), indent=2) + "\n"


def _metrics(
    api: "KubeClient", pods: Iterable[Manifest], known_secrets: Sequence[str], faults: list[str]
) -> dict[str, str]:
    from weft_operator.commands.fleet_view import METRICS_PORT
    from weft_operator.errors import ApiError

    files = {}
    for pod in pods:
        pages = (
            ("metrics",) if cluster.role_of(pod) in ("coordinator", PICKER_COMPONENT) else ("metrics", "engine/metrics")
        )
        for page in pages:
            try:
                text = api.page(key_of(pod), METRICS_PORT, page)
            except ApiError as error:
                faults.append(f"{page} of {name_of(pod)}: {error}")
                break  # skip the other pages of an unreachable pod: each attempt may take seconds
            files[f"metrics/{name_of(pod)}-{page.replace('/', '-')}.txt"] = _redacted(text, known_secrets)
    return files


def _logs(
    api: "KubeClient",
    pods: Iterable[Manifest],
    known_secrets: Sequence[str],
    faults: list[str],
    *,
    tail: int,
    engines: bool,
) -> dict[str, str]:
    from weft_operator.commands.logs import containers_of
    from weft_operator.commands.redaction import redact_log
    from weft_operator.errors import ApiError

    files = {}
    for pod in pods:
        for container in containers_of(pod):
            if container != "router" and not engines:
                continue
            for previous in (False, True) if _restarted(pod, container) else (False,):
                query = {"tailLines": str(tail), **({"previous": "true"} if previous else {})}
                try:
                    text = api.log(key_of(pod), container, **query)
                except ApiError as error:
                    faults.append(f"log of {name_of(pod)}/{container}: {error}")
                    continue
                lines = redact_log(text.splitlines(), known_secrets)
                files[f"logs/{name_of(pod)}-{container}{'-previous' if previous else ''}.log"] = "".join(
                    f"{line}\n" for line in lines
                )
    return files


def _operator_logs(api: "KubeClient", service: str, known_secrets: Sequence[str], faults: list[str]) -> dict[str, str]:
    """Return the log lines of operators in all namespaces that name this service; nothing about other services."""
    from weft_operator.commands.redaction import redact_log
    from weft_operator.errors import ApiError

    named = re.compile(rf"(?<![\w./-]){re.escape(service)}(?![\w-])")
    try:
        pods = api.list("v1", "Pod", namespace="", selector=OPERATORS)
    except ApiError as error:
        faults.append(f"logs of the operator: {error}")
        return {}
    files = {}
    for pod in pods:
        try:
            text = api.log(key_of(pod), "operator", tailLines=str(MAX_LINES))
        except ApiError as error:
            faults.append(f"log of the operator {name_of(pod)}: {error}")
            continue
        related = [line for line in text.splitlines() if named.search(line)]
        if related:
            files[f"logs/operator-{name_of(pod)}.log"] = "".join(
                f"{line}\n" for line in redact_log(related, known_secrets)
            )
    return files


def _restarted(pod: Manifest, container: str) -> bool:
    status = pod.get("status") or {}
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return any(item.get("name") == container and int(item.get("restartCount", 0)) > 0 for item in containers)


def _summary(service: Manifest, known_secrets: Sequence[str]) -> str:
    from weft_operator.commands.page import service_page
    from weft_operator.commands.tables import plain_text

    return _redacted(plain_text(service_page(service)), known_secrets) + "\n"


def _redacted(text: str, known_secrets: Sequence[str]) -> str:
    from weft_operator.commands.redaction import redact

    return redact(text, known_secrets)


def _known_secrets(api: "KubeClient", service: Manifest) -> tuple[str, ...]:
    """Return the values of a service's Secrets, as far as they may be read, so that they can be redacted.

    They are written nowhere. If they may not be read, patterns still find what looks like a secret.
    """
    import base64
    import binascii

    from weft_operator.errors import ApiError

    name, namespace = name_of(service), service["metadata"]["namespace"]
    found: set[str] = set()
    for secret in {f"{name}-token", *_references(service.get("spec"))}:
        try:
            data: Mapping[str, Any] = api.get(ObjectKey("v1", "Secret", namespace, secret)).get("data") or {}
        except ApiError:
            continue
        for encoded in data.values():
            try:
                text = base64.b64decode(encoded, validate=True).decode(errors="replace")
            except (binascii.Error, ValueError, TypeError):
                continue
            found |= {str(encoded), text.strip(), *(line.strip() for line in text.splitlines())}
    return tuple(found)


def _references(value: Any) -> set[str]:
    """Return the names of the Secrets that a spec refers to."""
    if isinstance(value, list):
        return {name for item in value for name in _references(item)}
    if not isinstance(value, Mapping):
        return set()
    found = {
        str(item["name"])
        for key, item in value.items()
        if key.lower().endswith(("secretref", "secretkeyref")) and isinstance(item, Mapping) and "name" in item
    }
    return found | {name for item in value.values() for name in _references(item)}


def _result_text(target: Path, files: Mapping[str, str], faults: Sequence[str]) -> str:
    lines = [f"wrote {target}: {len(files)} files, without secrets, tokens and prompts; review it before you share it"]
    lines += [f"could not read {fault}" for fault in faults[:5]]
    if len(faults) > 5:
        lines.append(f"and {len(faults) - 5} more, see faults.txt")
    return "\n".join(lines)
