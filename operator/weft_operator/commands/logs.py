"""The command ``weft logs``: the logs of all pods of a service, merged by time."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from weft_operator.api.objects import Manifest, key_of, name_of
from weft_operator.commands import cluster

if TYPE_CHECKING:
    from weft_operator.kube.client import KubeClient

POLL_S = 1.0
ROLES = ("coordinator", "picker", "prefill", "decode", "both")


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """One line of a container's log; ``at`` is the API server's RFC 3339 timestamp, which sorts as text."""

    at: str
    pod: str
    container: str
    text: str


@click.command()
@cluster.service_argument
@cluster.namespace_options
@click.option("--role", type=click.Choice(ROLES), help="Only pods of this role.")
@click.option("--pod", "pod_name", help="Only this pod.")
@click.option(
    "-c",
    "--container",
    type=click.Choice(["router", "engine", "weights", "all"]),
    default="router",
    show_default=True,
    help="weights: the downloads of the model into a cache, by Jobs and by sidecars of workers.",
)
@click.option(
    "--tail", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Lines of each container."
)
@click.option(
    "--since", type=click.FloatRange(min=1), metavar="SECONDS", help="Only lines of the last so many seconds."
)
@click.option("-p", "--previous", is_flag=True, help="The logs of the previous instances of the containers.")
@click.option("-f", "--follow", is_flag=True, help="Print new lines until interrupted.")
@click.option(
    "-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True,
    help="text; json: an object a line; yaml: a document a line.",
)  # fmt: skip
def logs(
    *,
    name: str,
    namespace: str | None,
    role: str | None,
    pod_name: str | None,
    container: str,
    tail: int,
    since: float | None,
    previous: bool,
    follow: bool,
    output: str,
) -> int:
    """Print the logs of a service's pods, merged by time."""
    if follow and previous:
        raise click.UsageError("--previous and --follow exclude each other: previous containers write no new lines")
    api = cluster.connect_to_cluster()
    where = cluster.namespace_of(namespace)
    cluster.service(api, name, where)
    with cluster.api_errors():
        pods = _select_pods(cluster.pods_of(api, name, where, role=role), pod_name, name)
    query = {"tailLines": str(tail), **({"sinceSeconds": str(int(since))} if since else {})}
    if previous:
        query["previous"] = "true"
    found, faults = read(api, pods, container, query)
    for fault in faults:
        click.echo(f"weft logs: {fault}", err=True)
    if not follow and not found and faults:
        return 1
    _print(found, output)
    while follow:
        newest = max((line.at for line in found), default="")
        time.sleep(POLL_S)
        with cluster.api_errors():
            pods = _select_pods(cluster.pods_of(api, name, where, role=role), pod_name, name)
        seen = frozenset(line for line in found if line.at[:19] == newest[:19])
        # The API server's sinceTime has whole seconds, so lines of the last second are read again.
        latest, _ = read(api, pods, container, {"sinceTime": f"{newest[:19]}Z"} if newest else query)
        new_lines = [line for line in latest if line not in seen and line.at >= newest]
        _print(new_lines, output)
        found = new_lines or found
    return 0


def read(
    api: "KubeClient", pods: Iterable[Manifest], container: str, query: Mapping[str, str]
) -> tuple[list[Line], list[str]]:
    """Return the lines of all pods by time, and the errors of logs that could not be read."""
    from weft_operator.errors import ApiError

    found: list[Line] = []
    faults = []
    for pod in pods:
        for each in containers_of(pod):
            if container not in ("all", each):
                continue
            try:
                text = api.log(key_of(pod), each, timestamps="true", **query)
            except ApiError as error:
                faults.append(f"{name_of(pod)}/{each}: {error}")
                continue
            found.extend(lines_of(text, pod=name_of(pod), container=each))
    return sorted(found), faults


def containers_of(pod: Manifest) -> list[str]:
    """Return the names of a pod's containers, sidecars included."""
    spec = pod.get("spec") or {}
    return [str(item["name"]) for item in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))]


def lines_of(text: str, *, pod: str, container: str) -> Iterator[Line]:
    """Yield the lines of a log with timestamps."""
    for line in text.splitlines():
        at, _, rest = line.partition(" ")
        yield Line(at, pod, container, rest)


def format_line(line: Line) -> str:
    """Return a line as text; a structured one as its event and fields."""
    body = _structured(line.text)
    head = f"{line.at[:23]} {line.pod}/{line.container}"
    if body is None:
        return f"{head} {line.text}"
    event = body.pop("event", body.pop("message", body.pop("msg", "")))
    level = str(body.pop("level", ""))
    for time_key in ("time", "ts", "timestamp"):
        body.pop(time_key, None)
    rest = " ".join(f"{key}={value}" for key, value in body.items())
    return " ".join(part for part in (head, level.upper(), str(event), rest) if part)


def _structured(text: str) -> dict[str, Any] | None:
    try:
        body = json.loads(text)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _select_pods(pods: Sequence[Manifest], pod_name: str | None, service: str) -> list[Manifest]:
    if pod_name is None:
        return list(pods)
    found = [pod for pod in pods if name_of(pod) == pod_name]
    if not found:
        names = ", ".join(name_of(pod) for pod in pods) or "none"
        raise click.ClickException(f"{service} has no pod {pod_name!r}; it has {names}")
    return found


def _print(found: Iterable[Line], output: str) -> None:
    for line in found:
        if output == "text":
            click.echo(format_line(line))
            continue
        body = {"time": line.at, "pod": line.pod, "container": line.container, "line": line.text}
        if output == "json":
            click.echo(json.dumps(body))
        else:
            import yaml

            click.echo(yaml.safe_dump(body, sort_keys=False, explicit_start=True, allow_unicode=True), nl=False)
