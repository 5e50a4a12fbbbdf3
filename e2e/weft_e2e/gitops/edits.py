"""What people do beside the repository, and what they put into it by mistake."""

import json

from weft_e2e.cluster import kubectl
from weft_e2e.gitops.api import APPLICATIONS, SERVICES, by_name, objects, refresh, refreshed
from weft_e2e.gitops.argocd import state_of
from weft_e2e.gitops.scale_steps import StepTargets
from weft_e2e.kube import Object
from weft_e2e.waiting import until

EDITOR = "kubectl-edit"
WITHIN_S = 120.0


def hand_edit(stage: StepTargets, name: str) -> str:
    """Scale a service's coordinator by hand; return the words of the event about its being put back.

    Raises:
        WaitedTooLong: it was not put back, no event names who it was, or Argo CD took notice of it.
    """
    wanted = _coordinator(stage, name)["spec"]["replicas"]
    patch = json.dumps({"spec": {"replicas": wanted + 3}})
    argv = ("patch", "deployment", name, "-n", stage.namespace, f"--field-manager={EDITOR}", "-p", patch)
    kubectl.run(kubectl.kubectl_argv(*argv), stage.admin)
    until(lambda: _coordinator(stage, name)["spec"]["replicas"] == wanted, what="the edit put back", timeout_s=WITHIN_S)
    return until(lambda: _told(stage, name), what=f"an event that names {EDITOR}", timeout_s=WITHIN_S)


def bad_commit(stage: StepTargets, body: Object) -> str:
    """Commit a spec that nobody can plan, and take it back; return what the service said of it.

    Raises:
        WaitedTooLong: Argo CD did not call it Degraded, or not Healthy again when it was gone.
    """
    name = body["metadata"]["name"]
    bad = json.loads(json.dumps(body))
    bad["spec"]["model"]["maxModelLen"] = 4_000_000
    stage.content.service(bad)
    stage.content.commit("Ask for more context than a GPU holds")
    words = until(lambda: _health(stage, name, "Degraded"), what=f"{name} Degraded", timeout_s=WITHIN_S)
    stage.content.service(body)
    stage.content.commit("Take it back")
    until(lambda: _health(stage, name, "Healthy"), what=f"{name} Healthy again", timeout_s=WITHIN_S)
    return words


def _coordinator(stage: StepTargets, name: str) -> Object:
    answer = stage.http.get(f"/apis/apps/v1/namespaces/{stage.namespace}/deployments/{name}")
    answer.raise_for_status()
    found: Object = answer.json()
    return found


def _told(stage: StepTargets, name: str) -> str | None:
    events = objects(stage.http, f"/api/v1/namespaces/{stage.namespace}/events")
    about = (e["message"] for e in events if e["reason"] == "DriftCorrected" and e["involvedObject"]["name"] == name)
    return next((words for words in about if EDITOR in words), None)


def _health(stage: StepTargets, name: str, wanted: str) -> str | None:
    """Return what Argo CD says of a service once it is at the newest commit and of this health."""
    item = by_name(stage.http, APPLICATIONS)[name]
    if state_of(item) == ("Synced", wanted) and refreshed(item) and _newest(stage, item):
        live = by_name(stage.http, f"{SERVICES}/namespaces/{stage.namespace}/disagginferenceservices")[name]
        said = "Stalled" if wanted == "Degraded" else "Ready"
        return next(str(one["message"]) for one in live["status"]["conditions"] if one["type"] == said)
    if refreshed(item):
        refresh(stage.http, name)
    return None


def _newest(stage: StepTargets, item: Object) -> bool:
    return bool(item["status"]["sync"].get("revision") == stage.content.head())
