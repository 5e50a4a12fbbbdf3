"""Format a service's status as one terminal page. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from weft_operator.api.objects import Manifest
from weft_operator.commands.tables import figures, seconds
from weft_operator.status.runbook import remedy_of

_COLOURS = {"True": "green", "False": "red", "Unknown": "yellow"}
_GOOD_WHEN_FALSE = frozenset({"Progressing", "Reconciling", "Stalled"})
"""Conditions whose good state is False."""
_ABSENT = "-"
_WORKLOAD_TEXTS: Mapping[str, Callable[[float], str]] = {
    "rounds": lambda mean: f"{mean:.3g} rounds a session",
    "firstPrompt": lambda mean: f"first prompts of {mean:.0f} tokens",
    "increment": lambda mean: f"later ones of {mean:.0f}",
    "decode": lambda mean: f"answers of {mean:.0f}",
    "gap": lambda mean: f"pauses of {seconds(mean)}",
}
"""How means of the observed workload are shown, by field."""


def services_table(services: Iterable[Manifest], *, namespaces: bool) -> Table:
    """Return one row for each service, those that are not ready first."""
    table = _table()
    names = ["namespace"] if namespaces else []
    for title in (*names, "name", "ready", "plan", "SLO met", "proposal", "why"):
        table.add_column(title)
    for item in sorted(services, key=_unready_first):
        status = item.get("status") or {}
        ready, met = _condition(status, "Ready"), _condition(status, "SLOMet")
        metadata = item["metadata"]
        _add(
            table,
            *([metadata["namespace"]] if namespaces else []),
            metadata["name"],
            _status_text(ready),
            status.get("planSummary", _ABSENT),
            _status_text(met),
            (status.get("proposedPlan") or {}).get("summary", _ABSENT),
            ready.get("reason", "NotSeenYet"),
        )
    return table


def service_page(service: Manifest) -> RenderableType:
    """Return a service's conditions, remedies, plan, observed traffic and proposal."""
    status: Mapping[str, Any] = service.get("status") or {}
    metadata, spec = service["metadata"], service["spec"]
    name = Text.assemble((metadata["name"], "bold"), f" in {metadata['namespace']}, {spec['model']['name']}")
    parts: list[RenderableType] = [name]
    if not status:
        return Group(name, Text("No operator has reconciled it yet; is one running, and does it watch this namespace?"))
    generation = int(metadata.get("generation", 0))
    if int(status.get("observedGeneration") or 0) < generation:
        parts.append(
            Text("The operator has not reconciled the newest spec yet: this is the status of the previous one.")
        )
    if status.get("url"):
        parts.append(Text(status["url"]))
    parts += [_heading("Conditions"), Padding(_conditions(status.get("conditions") or ()), (0, 0, 0, 2))]
    remedies = list(_remedies(status.get("conditions") or ()))
    if remedies:
        parts += [_heading("What helps"), *(Padding(Text(line), (0, 0, 0, 2)) for line in remedies)]
    if status.get("plan"):
        parts += [_heading("Plan"), *_plan(status)]
    router = status.get("router") or {}
    if "offered" in router:
        change = f"`weft rollout upgrade {metadata['name']}` changes to it"
        newer = f"{router['image']} runs, the operator offers {router['offered']}: {change}"
        parts += [_heading("Router"), Padding(Text(newer), (0, 0, 0, 2))]
    if status.get("canary"):
        parts += [_heading("Canary"), Padding(Text(_canary(metadata, status["canary"])), (0, 0, 0, 2))]
    if status.get("observed"):
        parts += [_heading("Observed"), *_observed(status["observed"])]
    if status.get("proposedPlan"):
        parts += [_heading("Proposed"), *_proposed(metadata, spec, status["proposedPlan"])]
    return Group(*parts)


def proposal(service: Manifest) -> RenderableType:
    """Return a service's proposed plan."""
    return Group(*_proposed(service["metadata"], {}, service["status"]["proposedPlan"]))


def _plan(status: Mapping[str, Any]) -> Iterable[RenderableType]:
    plan = status["plan"]
    made = f", made from {plan['madeFrom']}" if plan.get("madeFrom") else ""
    yield Padding(Text(f"{status.get('planSummary', '')}, revision {plan['revision']}{made}"), (0, 0, 0, 2))
    table = _table()
    for title in ("role", "degree", "pool", "ready"):
        table.add_column(title)
    for group in status.get("groups") or ():
        whole = group["ready"] >= group["desired"]
        _add(table,
            group["role"], str(group["degree"]), group["pool"],
            Text(f"{group['ready']} of {group['desired']}", style="green" if whole else "red"),
        )  # fmt: skip
    yield Padding(table, (0, 0, 0, 2))
    predicted = plan.get("predicted") or {}
    yield Padding(Text("predicted: " + figures(predicted)), (0, 0, 0, 2))


def _observed(observed: Mapping[str, Any]) -> Iterable[RenderableType]:
    if observed.get("workload") is None:
        yield Padding(Text(f"nothing: {observed['metricsReason']}"), (0, 0, 0, 2))
        return
    work, slo = observed["workload"], observed.get("slo") or {}
    since = f" at {observed['at']}" if observed.get("at") else ""
    rates = f"{work['sessionRate']:g} sessions/s ({work['sessions']} seen), {work['roundRate']:g} rounds/s"
    refused = f", {work['refusedRate']:g}/s refused" if work.get("refusedRate") else ""
    yield Padding(Text(f"over {observed['window']}{since}: {rates}{refused}"), (0, 0, 0, 2))
    shape = [format_mean(work[key]["mean"]) for key, format_mean in _WORKLOAD_TEXTS.items() if work.get(key)]
    if shape:
        yield Padding(Text(", ".join(shape)), (0, 0, 0, 2))
    words = []
    for key, title in (("ttftFirst", "TTFT of first rounds"), ("ttftLater", "of later rounds"), ("itl", "ITL")):
        if slo.get(key):
            words.append(f"{title} {seconds(slo[key]['value'])} of {slo[key]['count']}")
    if slo.get("attainment") is not None:
        words.append(f"SLO met by {slo['attainment']:.1%} of {slo['unit']}s")
    if words:
        yield Padding(Text(f"P{slo['percentile']} " + ", ".join(words)), (0, 0, 0, 2))


_PHASES = {"Running": "running", "Passed": "passed", "Failed": "failed", "RolledBack": "rolled back"}


def _canary(metadata: Mapping[str, Any], canary: Mapping[str, Any]) -> str:
    who = f"{canary['percent']} % of new sessions go to {canary['plan']}"
    until = f", analyzed at {canary['until']}" if canary.get("until") and canary["state"] == "Running" else ""
    why = f": {canary['message']}" if canary.get("message") else ""
    now = "its workers are starting" if canary["state"] == "Running" and not until else _PHASES[canary["state"]]
    name = metadata["name"]
    ends = f"; end it: weft rollout promote {name}, or abort {name}" if canary["state"] == "Running" else ""
    return f"{who}{until} ({now}{why}){ends}"


def _proposed(
    metadata: Mapping[str, Any], spec: Mapping[str, Any], proposed: Mapping[str, Any]
) -> Iterable[RenderableType]:
    yield Padding(Text(f"{proposed['summary']}: {proposed['reason']}"), (0, 0, 0, 2))
    for line in proposed.get("diff") or ():
        yield Padding(Text(line), (0, 0, 0, 4))
    if (spec.get("planning") or {}).get("mode") == "Manual":
        yield Padding(Text(f"approve it: weft approve {metadata['name']} -n {metadata['namespace']}"), (0, 0, 0, 2))


def _add(table: Table, *cells: str | Text) -> None:
    """Add a row; the brackets of a cell are no markup."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def _conditions(conditions: Sequence[Mapping[str, Any]]) -> Table:
    table = _table()
    for title in ("condition", "is", "reason", "message"):
        table.add_column(title, overflow="fold")
    for item in conditions:
        _add(table, item["type"], _status_text(item), item["reason"], item.get("message", ""))
    return table


def _remedies(conditions: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Yield the remedy of each condition that is not in its good state, without duplicates."""
    yielded = set()
    for item in conditions:
        good = "False" if item["type"] in _GOOD_WHEN_FALSE else "True"
        remedy = remedy_of(item["type"], item["reason"])
        if remedy and (item["status"] != good or item["type"] == "Planned") and remedy not in yielded:
            yielded.add(remedy)
            yield f"{item['reason']}: {remedy}"


def _heading(text: str) -> Padding:
    return Padding(Text(text, style="bold"), (1, 0, 0, 0))


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((item for item in status.get("conditions") or () if item["type"] == kind), {})


def _status_text(condition: Mapping[str, Any]) -> Text:
    status = str(condition.get("status", "Unknown"))
    colour = (
        "green" if status == "False" and condition.get("type") in _GOOD_WHEN_FALSE else _COLOURS.get(status, "yellow")
    )
    return Text(status, style=colour)


def _unready_first(service: Manifest) -> tuple[bool, str, str]:
    ready = _condition(service.get("status") or {}, "Ready").get("status") == "True"
    return ready, service["metadata"]["namespace"], service["metadata"]["name"]
