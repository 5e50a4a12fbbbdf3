"""The sessions of a service, one by one: read from the routers beside its decode workers, merged and bounded."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from weft_operator.api.objects import WORKER_LABEL, Manifest, key_of, labels_of, name_of
from weft_operator.commands import cluster
from weft_operator.errors import ApiError

if TYPE_CHECKING:
    from weft_operator.kube.client import KubeClient

Row = Mapping[str, Any]
ORDERS: Final[Mapping[str, Callable[[Row], float]]] = {
    "tokens": lambda row: -row["tokens"],
    "idle": lambda row: -row["idleSeconds"],
    "rounds": lambda row: -row["rounds"],
    "handle": lambda row: math.inf if row["handleSeconds"] is None else row["handleSeconds"],
}
"""The orders of rows, the smallest first: as the routers' (weft_router.sessions.session_view)."""
MOST: Final = 1000
PARALLEL_READS: Final = 8
_MESH_PORT: Final = "http-mesh"
_SHORT: Final = 16
_PLACES: Final = {"gpu": "GPU", "cpu": "CPU", "none": "nowhere"}


def read_sessions(
    api: "KubeClient", pods: Sequence[Manifest], *, sort: str, limit: int, session: str = ""
) -> tuple[list[Row], int, dict[str, str]]:
    """Return the first rows of all pods in an order, how many sessions there are, and the errors of unread pods."""
    rows: list[Row] = []
    total, faults = 0, {}
    query = {"n": limit, "sort": sort, **({"session": session} if session else {})}
    holders = [pod for pod in pods if WORKER_LABEL in labels_of(pod) and cluster.role_of(pod) != "prefill"]
    with ThreadPoolExecutor(PARALLEL_READS) as readers:
        answers = list(readers.map(lambda pod: _ask(api, pod, query), holders))
    for pod, (page, fault) in zip(holders, answers, strict=True):
        if fault:
            faults[name_of(pod)] = fault
        total += page["total"]
        rows += page["sessions"]
    return sorted(rows, key=ORDERS[sort])[:limit], total, faults


def rows_text(rows: Sequence[Row], total: int, faults: Mapping[str, str]) -> str:
    """Return the table as text."""
    from weft_operator.commands.tables import lines, table, text_of

    titles = (
        "session",
        "worker",
        "KV at",
        "class",
        "KV tokens",
        "rounds",
        "KV is in",
        "handle ends in",
        "last round ago",
    )
    shown = [
        (
            row["session"][:_SHORT],
            row["worker"],
            row["kvWorker"],
            row["class"],
            str(row["tokens"]),
            str(row["rounds"]),
            _places(row),
            _seconds(row["handleSeconds"]),
            _seconds(row["idleSeconds"]),
        )
        for row in rows
    ]
    said = [f"{len(rows)} of {total} sessions"] if total else ["there is no session yet"]
    said += [f"{name}: {why}" for name, why in list(faults.items())[:3]]
    if faults:
        said.append(f"{len(faults)} pods could not be read; your account needs the right to create pods/exec there")
    parts = [table(titles, shown, right=(titles[4], titles[5], *titles[7:]))] if rows else []
    return text_of(*parts, lines(*said))


def _ask(api: "KubeClient", pod: Manifest, query: Mapping[str, object]) -> tuple[Mapping[str, Any], str]:
    """Return the page of one pod's router, or an empty one and why it could not be read."""
    from weft_operator.kube.exec import output_of

    nothing = {"total": 0, "sessions": []}
    path = f"/debug/sessions?{urlencode(query)}"
    port = _mesh_port(pod)
    url = path if port is None else f"http://127.0.0.1:{port}{path}"
    try:
        page = json.loads(output_of(api, key_of(pod), "router", ("python", "-m", "weft_router.ask", url)))
        if "sessions" not in page:
            return nothing, f"{page}: this worker's router is of an older version"
    except ApiError as error:
        return nothing, str(error)
    except ValueError:
        return nothing, "the answer is not JSON"
    return page, ""


def _mesh_port(pod: Manifest) -> int | None:
    """Return the port of a router in a mesh, whose usual port has nothing but health and metrics."""
    spec = pod.get("spec") or {}
    ports = (
        port
        for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
        if container.get("name") == "router"
        for port in container.get("ports") or ()
    )
    return next((int(port["containerPort"]) for port in ports if port.get("name") == _MESH_PORT), None)


def _places(row: Row) -> str:
    """Return how many tokens are in each tier, those nowhere last; where a router does not know it, the tier."""
    found = row.get("kv")
    if not found:
        return row["tier"] or "-"
    return ", ".join(f"{_PLACES.get(name, name)} {tokens}" for name, tokens in found.items() if tokens) or "-"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
