"""What the run reads of the API server, and how it hears of every change of an Application."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import httpx

from weft_e2e.gitops.argocd import NAMESPACE, state_of
from weft_e2e.kube import Object

SERVICES = "/apis/weft.dev/v1alpha1"
APPLICATIONS = f"/apis/argoproj.io/v1alpha1/namespaces/{NAMESPACE}/applications"
MERGE = {"Content-Type": "application/merge-patch+json"}
REFRESH = "argocd.argoproj.io/refresh"
OPERATOR = "weft-operator"


def objects(http: httpx.Client, path: str, **query: str) -> list[Object]:
    """Return what is listed at a path."""
    answer = http.get(path, params=query)
    answer.raise_for_status()
    items: list[Object] = answer.json()["items"]
    return items


def by_name(http: httpx.Client, path: str) -> dict[str, Object]:
    """Return what is listed at a path, by name."""
    return {item["metadata"]["name"]: item for item in objects(http, path)}


def refresh(http: httpx.Client, name: str) -> None:
    """Let Argo CD compare an Application now; the annotation is gone when it has."""
    patch = {"metadata": {"annotations": {REFRESH: "normal"}}}
    http.patch(f"{APPLICATIONS}/{name}", json=patch, headers=MERGE).raise_for_status()


def refreshed(item: Object) -> bool:
    """Return whether Argo CD has compared since it was last told to."""
    return REFRESH not in (item["metadata"].get("annotations") or {})


def is_true(item: Object, condition: str) -> bool:
    """Return whether a condition of a service is True, for the spec that it has."""
    status = item.get("status") or {}
    if status.get("observedGeneration") != item["metadata"]["generation"]:
        return False
    return any(one["type"] == condition and one["status"] == "True" for one in status.get("conditions") or ())


def gpus(item: Object) -> int | None:
    """Return the GPUs of the active plan, None before the first."""
    found: int | None = ((item.get("status") or {}).get("plan") or {}).get("gpus")
    return found


def writes_of_spec(item: Object) -> list[str]:
    """Return the fields of a service's spec, labels and annotations that the operator manages: there must be none."""
    found = []
    for entry in item["metadata"].get("managedFields") or ():
        fields = entry.get("fieldsV1") or {}
        if entry["manager"].startswith(OPERATOR):
            meta = fields.get("f:metadata") or {}
            found += [name for name in ("f:spec",) if name in fields]
            found += [name for name in ("f:labels", "f:annotations") if name in meta]
    return found


@dataclass(slots=True)
class SyncReports:
    """Every word of Argo CD about its Applications that is not Synced, from when ``listening`` begins."""

    wrong: list[str] = field(default_factory=list)
    events: int = 0


@contextmanager
def listening(http: httpx.Client) -> Iterator[SyncReports]:
    """Hear of every change of every Application until the end of the block.

    Raises:
        RuntimeError: the watch ended before the block did.
    """
    heard, over, broken = SyncReports(), threading.Event(), threading.Event()
    version = http.get(APPLICATIONS).json()["metadata"]["resourceVersion"]
    query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "3600"}

    def listen() -> None:
        with suppress(httpx.HTTPError), http.stream("GET", APPLICATIONS, params=query, timeout=None) as answer:
            for line in answer.iter_lines():
                if over.is_set():
                    return
                _hear(heard, json.loads(line)["object"])
        broken.set()

    threading.Thread(target=listen, name="applications", daemon=True).start()
    yield heard
    if broken.is_set():
        raise RuntimeError("the watch of Applications ended early")
    over.set()


def _hear(heard: SyncReports, item: Object) -> None:
    heard.events += 1
    sync, health = state_of(item)
    if sync != "Synced":
        heard.wrong.append(f"{item['metadata']['name']} was {sync or 'unknown'} ({health})")
