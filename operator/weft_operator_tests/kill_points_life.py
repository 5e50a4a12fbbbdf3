"""What a service lives through while its operator is killed, step by step, and what is looked at after each."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft_operator.api.objects import CANARY_ANNOTATION, HASH_ANNOTATION, WORKER_LABEL, Manifest, labels_of, pod_role
from weft_operator_tests.api import RealApi, small_service
from weft_operator_tests.operator_with_plans import LONG_PROMPT
from weft_operator_tests.service_keys import key_in
from weft_router.state.redis_store import RedisStore

NAMESPACE, NAME = "killed", "demo"
KINDS = (
    "apis/apps/v1/statefulsets",
    "apis/apps/v1/deployments",
    "apis/apps/v1/controllerrevisions",
    "api/v1/services",
    "api/v1/configmaps",
    "api/v1/secrets",
    "api/v1/serviceaccounts",
    "apis/policy/v1/poddisruptionbudgets",
    "apis/networking.k8s.io/v1/networkpolicies",
    "apis/weft.dev/v1alpha1/workergroups",
)
SERVICE = f"apis/weft.dev/v1alpha1/namespaces/{NAMESPACE}/disagginferenceservices/{NAME}"
PLAN = f"api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}-plan"

Doing = Callable[[RealApi], object]


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a person, or the traffic, does, and how it is seen that the service has come to its end.

    ``again``: it is done at every look until then, as coordinators say again and again that requests wait.
    """

    name: str
    do: Doing
    over: Callable[[RealApi], bool]
    again: bool = False


def ask(api: RealApi, change: Mapping[str, Any]) -> None:
    """Apply the service as a user does, with what a step changes."""
    body = small_service(NAMESPACE, NAME, **change.get("spec", {}))
    body["metadata"]["annotations"] = dict(change.get("annotations", {}))
    body["spec"]["workload"] |= change.get("workload", {})
    body["spec"]["rollout"] = body["spec"]["rollout"] | change.get("rollout", {})
    body["spec"]["capacity"]["pools"][0]["degrees"] = change.get("degrees", [2])
    api.send("PATCH", f"{SERVICE}?fieldManager=user&force=true", body)


def plans() -> tuple[Step, ...]:
    """Return the life of a service whose plan changes twice."""

    def asks(name: str, **change: Any) -> Step:
        return Step(name, lambda api: ask(api, change), at_rest)

    more = {"arrivalRate": 1.5}
    return (
        asks("create"),
        asks("plan anew", workload=more),
        asks("change degrees", workload=more, degrees=[4]),
        END,
    )


def roles() -> tuple[Step, ...]:
    """Return the life of a service whose workers change their roles: another ratio, and back."""

    def asks(name: str, **workload: Any) -> Step:
        return Step(name, lambda api: ask(api, {"workload": {"arrivalRate": 1.5, **workload}}), at_rest)

    return (
        asks("create"),
        asks("prefill more", firstPrompt={"mean": 2 * LONG_PROMPT}),
        asks("decode more"),
        END,
    )


def trials(redis_url: str) -> tuple[Step, ...]:
    """Return the life of a service whose plans are tried: one stays, one does not; then it rests, and is woken."""
    spec = {"planning": {"objective": "cost", "scaleToZero": {"after": "30m"}}}
    base = {"spec": spec, "rollout": {"canary": {"percent": 10, "window": "10m"}}}

    def tries(name: str, degrees: list[int]) -> Step:
        return Step(name, lambda api: ask(api, {**base, "degrees": degrees}), _with_canary_status)

    def says(word: str, degrees: list[int]) -> Step:
        def do(api: RealApi) -> None:
            name = ((api.read(SERVICE) or {}).get("status") or {})["canary"]["hash"]
            ask(api, {**base, "degrees": degrees, "annotations": {CANARY_ANNOTATION: f"{word} {name}"}})

        return Step(word, do, at_rest)

    return (
        Step("create", lambda api: ask(api, base), at_rest),
        tries("try a plan", [2, 4]),
        says("promote", [2, 4]),
        tries("try another plan", [2, 4, 8]),
        says("abort", [2, 4, 8]),
        Step("rest", _put_to_rest, lambda api: _reason(api, "Ready") == "ScaledToZero" and at_rest(api), again=True),
        Step("wake", lambda api: _want_workers(api, redis_url), _awake, again=True),
        END,
    )


END = Step("delete", lambda api: api.send("DELETE", SERVICE), lambda api: not rest(api))


def at_rest(api: RealApi) -> bool:
    """Return whether the service says that it is ready for what it was asked, and nothing moves any more."""
    return _calm(api) and _reason(api, "Progressing") == "UpToDate"


def _with_canary_status(api: RealApi) -> bool:
    trial = _status(api).get("canary") or {}
    return _calm(api) and _reason(api, "Progressing") == "CanaryRunning" and "since" in trial


def _awake(api: RealApi) -> bool:
    return _reason(api, "Ready") == "Serving" and at_rest(api)


def _calm(api: RealApi) -> bool:
    ready, seen = (_conditions(api).get(kind, {}) for kind in ("Ready", "MetricsAvailable"))
    generation = (api.read(SERVICE) or {}).get("metadata", {}).get("generation")
    pods = api.items("api/v1/pods", NAMESPACE)
    return (
        ready.get("status") == "True"
        and ready.get("observedGeneration") == generation
        and seen.get("reason") != "NotYetObserved"
        and not any(pod["metadata"].get("deletionTimestamp") for pod in pods)
    )


def _put_to_rest(api: RealApi) -> None:
    """Have the record say that nobody asks anything; again where a pass that was under way has written it meanwhile."""
    data = (api.read(PLAN) or {}).get("data") or {}
    baseline = json.loads(data.get("replanning.json") or "{}")
    if not data or "asleepAt" in baseline:
        return
    body: Manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{NAME}-plan"}}
    body["data"] = {"replanning.json": json.dumps({**baseline, "asleepAt": "2026-01-01T00:00:00Z"})}
    api.send("PATCH", f"{PLAN}?fieldManager=time&force=true", body)


def _want_workers(api: RealApi, redis_url: str) -> None:
    key = key_in(api.read(f"api/v1/namespaces/{NAMESPACE}/secrets/{NAME}-token"))

    async def demand() -> None:
        store = RedisStore(redis_url, namespace=NAMESPACE, service=NAME, key=key)
        await store.demand()
        await store.close()

    asyncio.run(demand())


def _status(api: RealApi) -> Mapping[str, Any]:
    return (api.read(SERVICE) or {}).get("status") or {}


def _conditions(api: RealApi) -> dict[str, Any]:
    return {item["type"]: item for item in _status(api).get("conditions") or ()}


def _reason(api: RealApi, kind: str) -> str:
    return str(_conditions(api).get(kind, {}).get("reason", ""))


def rest(api: RealApi) -> list[str]:
    """Return what there is of the service."""
    left = [f"dis/{NAME}"] if api.read(SERVICE) else []
    for kind in (*KINDS, "api/v1/pods"):
        left += [f"{kind}/{item['metadata']['name']}" for item in api.items(kind, NAMESPACE)]
    return [name for name in left if name != "api/v1/serviceaccounts/default"]


def snapshot(api: RealApi) -> dict[str, Any]:
    """Return all objects of the service with what differs between two lives masked."""
    found = {}
    for kind in KINDS:
        for item in api.items(kind, NAMESPACE):
            if kind.endswith("controllerrevisions") and item["metadata"].get("labels", {}).get("weft.dev/worker"):
                continue  # the StatefulSet controller's own
            found[f"{kind}/{item['metadata']['name']}"] = _masked(item)
    pods = [pod for pod in api.items("api/v1/pods", NAMESPACE) if WORKER_LABEL in labels_of(pod)]
    found["roles of pods"] = {pod["metadata"]["name"]: pod_role(pod) for pod in pods}
    found["conditions"] = {kind: (item["status"], item["reason"]) for kind, item in _conditions(api).items()}
    return found


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _masked(item: Manifest) -> Any:
    kept = {key: value for key, value in item.items() if key not in ("status", "metadata", "apiVersion", "kind")}
    metadata = item["metadata"]
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != HASH_ANNOTATION}
    kept["metadata"] = {"labels": metadata.get("labels") or {}, "annotations": annotations}
    for volatile in ("clusterIP", "clusterIPs"):
        (kept.get("spec") or {}).pop(volatile, None)
    return json.loads(_UID.sub("UID", _TIME.sub("TIME", json.dumps(kept, sort_keys=True))))
