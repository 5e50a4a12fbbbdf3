"""Changes of services, generated from the schema of the CRD: every field times what may be done to its type.

Each is one change of a valid service, by name. Which of all possible ones are taken follows from a seed: first one of
every field, then others until there are enough. Some that no schema tells of, because they are about meaning, are
always among them.
"""

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from weft_operator.api.crd import service_crd
from weft_operator.api.objects import Manifest
from weft_operator_tests.largest import pattern_text
from weft_operator_tests.valid import REMOVED, changed, front_service, pools_service, service, vllm_service

Schema = Mapping[str, Any]
COUNT = 500
SEED = 30

SEEDS: Mapping[str, Callable[[], Manifest]] = {
    "front": front_service,
    "vllm": vllm_service,
    "pools": pools_service,
    "small": service,
}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one of the seeds."""

    seed: str
    path: str
    """The field, with positions in lists as numbers."""
    kind: str
    value: Any

    @property
    def name(self) -> str:
        return f"{self.seed}: {self.path} {self.kind}"

    def body(self) -> Manifest:
        """Return the changed service."""
        value = self.value if self.value is REMOVED else copy.deepcopy(self.value)
        return changed(SEEDS[self.seed](), self.path, value)


def mutations(count: int = COUNT, seed: int = SEED) -> list[Mutation]:
    """Return so many changes, the same for the same seed."""
    found = list(SEMANTIC)
    every = [mutation for name in SEEDS for mutation in changes_of(name)]
    random.Random(seed).shuffle(every)
    taken: set[str] = set()
    rest: list[Mutation] = []
    for mutation in every:
        field = ".".join("[]" if part.isdigit() else part for part in mutation.path.split("."))
        (rest if field in taken else found).append(mutation)
        taken.add(field)
    return [*found, *rest][:count]


def changes_of(seed: str) -> Iterator[Mutation]:
    """Yield all changes of one seed."""
    for path, kind, value in _changes(spec_schema(), SEEDS[seed]()["spec"], "spec"):
        yield Mutation(seed, path, kind, value)


@cache
def spec_schema() -> Schema:
    """Return the schema of a service's spec."""
    found: Schema = service_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def stored(schema: Schema, value: Any) -> Any:
    """Return a value as the API server keeps it: with defaults, without nulls and unknown fields."""
    if isinstance(value, dict) and "properties" in schema:
        inner = schema["properties"]
        given = {name: copy.deepcopy(part["default"]) for name, part in inner.items() if "default" in part}
        given |= {name: item for name, item in value.items() if name in inner and item is not None}
        return {name: stored(inner[name], item) for name, item in given.items()}
    if isinstance(value, list) and "items" in schema:
        return [stored(schema["items"], item) for item in value]
    return copy.deepcopy(value)


def _changes(schema: Schema, value: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    """Yield what may be done to a field that has a value, and to all within it."""
    if path != "spec":
        yield path, "deleted", REMOVED
        for kind, other in _others(schema, value):
            yield path, kind, other
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from _changes(inner, value[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}", "added", least(inner)
                # A part that is not there can only be wrong in one way of each type.
                for kind, other in list(_others(inner, least(inner)))[:2]:
                    yield f"{path}.{name}", kind, other
    if isinstance(value, list) and value:
        yield from _changes(schema["items"], value[0], f"{path}.0")


def _others(schema: Schema, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield other values of a field's type, and some that are of none."""
    if "enum" in schema:
        for other in schema["enum"]:
            if other != value:
                yield f"set to {other}", other
        yield "set to no value of the enum", "Other"
        return
    if schema.get("x-kubernetes-int-or-string"):
        for other in (1, 0, -1, "500m", "10Gi", "1e30", "many", ""):
            yield f"set to {other!r}", other
        return
    match schema.get("type"):
        case "boolean":
            yield "toggled", not value
            yield "set to a text", "yes"
        case "integer":
            for other in (value + 2, 0, -1, 2**31 - 1, 2**63, 1.5):
                yield f"set to {other}", other
        case "number":
            for other in (value + 2, value / 2, 0, -1, 1e300, "1"):
                yield f"set to {other}", other
        case "string":
            yield from _texts(schema, str(value))
        case "array":
            yield "emptied", []
            yield "pushed", [*value, least(schema["items"])]
            if value:
                yield "popped", value[:-1]
                yield "doubled", [*value, value[0]]
            yield "overfilled", [least(schema["items"])] * (schema["maxItems"] + 1)
        case "object":
            yield "emptied", {}
            yield "set to a list", []
            yield "given an unknown field", {**value, "noSuchField": 1}


def _texts(schema: Schema, value: str) -> Iterator[tuple[str, str]]:
    yield "emptied", ""
    if "(ms|s|m|h)" in schema.get("pattern", ""):
        for other in ("0s", "1ms", "1h30m", "90000h", "-1s", "1d", "5"):
            yield f"set to {other}", other
        return
    yield "changed", value[:-1] + ("b" if value[-1:] != "b" else "c")
    yield "too long", value + "x" * schema.get("maxLength", 253)
    yield "set to other letters", "☃-ünïcödé"
    yield "set to two lines", "a\nb"


def least(schema: Schema) -> Any:
    """Return a small value that the schema admits."""
    if "default" in schema and schema["default"] not in ({}, []):
        return copy.deepcopy(schema["default"])
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("x-kubernetes-int-or-string"):
        return "1"
    match schema.get("type"):
        case "boolean":
            return True
        case "integer" | "number":
            bound = schema.get("minimum", 1)
            return (
                bound + 1
                if schema.get("exclusiveMinimum")
                else max(bound, 1)
                if schema.get("maximum", 2) > 1
                else bound
            )
        case "string":
            return pattern_text(schema, min(schema.get("maxLength", 24), 24))
        case "array":
            return [least(schema["items"]) for _ in range(schema.get("minItems", 0))]
    if "additionalProperties" in schema:
        return {"example.com/a": least(schema["additionalProperties"])}
    inner = schema.get("properties", {})
    return {name: least(inner[name]) for name in schema.get("required", ())}


def _semantic(rows: Sequence[tuple[str, str, str, Any]]) -> tuple[Mutation, ...]:
    return tuple(Mutation(seed, path, kind, value) for seed, path, kind, value in rows)


SEMANTIC = _semantic(
    [
        ("vllm", "spec.engine.image", "that is no image", "no such image!"),
        ("vllm", "spec.engine.image", "that nobody has", "registry.invalid/none:latest"),
        ("vllm", "spec.engine.image", "by digest", f"registry.example.com/team/vllm-nixl@sha256:{'0' * 64}"),
        ("vllm", "spec.engine.args", "of the operator's own", ["--port=1"]),
        ("vllm", "spec.engine.args", "twice", ["--enable-chunked-prefill"] * 2),
        ("vllm", "spec.engine.env", "twice", [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
        ("vllm", "spec.engine.env", "empty", [{"name": "", "value": "1"}]),
        ("vllm", "spec.engine.resources", "with a limit below the request",
         {"requests": {"memory": "64Gi"}, "limits": {"memory": "1Gi"}}),
        ("vllm", "spec.engine.sharedMemory", "of a byte", "1"),
        ("vllm", "spec.model.name", "of nobody", "nobody/none"),
        ("vllm", "spec.model.maxModelLen", "of one token", 1),
        ("vllm", "spec.model.source", "in two places", {"huggingFace": {}, "pvc": {"claimName": "x"}}),
        ("small", "spec.slo.ttft", "that nobody keeps", "1ms"),
        ("small", "spec.slo.itl", "that nobody keeps", "1ms"),
        ("small", "spec.slo.ttft", "of an hour", "1h"),
        ("small", "spec.capacity.gpus", "of one", 1),
        ("small", "spec.capacity.gpus", "of none", 0),
        ("small", "spec.capacity.pools", "of none", []),
        ("small", "spec.capacity.pools", "of one name",
         [{"name": "a", "gpuType": "nvidia-h20"}, {"name": "a", "gpuType": "nvidia-h20"}]),
        ("small", "spec.capacity.pools.0.degrees", "of none", []),
        ("small", "spec.capacity.pools.0.degrees", "that are no powers of two", [3]),
        ("small", "spec.capacity.pools.0.degrees", "beyond a node", [64]),
        ("small", "spec.capacity.pools.0.parallelism", "of none", []),
        ("small", "spec.capacity.pools.0.parallelism", "of stages and ranks",
         [{"tp": 2, "pp": 2}, {"dp": 8, "ep": True}]),
        ("small", "spec.capacity.pools.0.gpuType", "of no vendor", "abacus"),
        ("small", "spec.capacity.pools.0.name", "that is long", "a" * 63),
        ("small", "spec.capacity.pools.0.name", "that is no label", "A_b"),
        ("small", "spec.capacity.pools.0.nodeSelector", "of no node", {"no": "where"}),
        ("small", "spec.workload.arrivalRate", "of nothing", 0),
        ("small", "spec.workload.arrivalRate", "of a flood", 1e9),
        ("small", "spec.workload.firstPrompt", "beyond the model", {"mean": 1e7}),
        ("small", "spec.planning.prefill", "upside down", {"min": 4, "max": 1}),
        ("small", "spec.planning.budgetPerHour", "of a cent", 0.01),
        ("small", "spec.planning.mode", "off", "Off"),
        ("small", "spec.planning.interval", "too short", "1ms"),
        ("small", "spec.planning.prometheus", "elsewhere", {"url": "http://no.such.host:9090"}),
        ("small", "spec.planning.prometheus", "stale before it is seen", {"window": "20s", "staleAfter": "1m"}),
        ("small", "spec.coordinator", "without replicas", {"replicas": 0}),
        ("small", "spec.coordinator", "with many replicas", {"replicas": 50}),
        ("small", "spec.coordinator", "with a tiny quota", {"resources": {"limits": {"memory": "1Mi", "cpu": "1m"}}}),
        ("small", "spec.coordinator", "with a request above the limit",
         {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}}),
        ("small", "spec.rollout", "without patience", {"drainTimeout": "0s"}),
        ("small", "spec.rollout", "of everything at once", {"maxUnavailable": 1000}),
        ("small", "spec.routing", "of no policy", {"policy": "none"}),
        ("small", "spec.podTemplates", "that end too early",
         [{"component": "decode", "patch": {"spec": {"terminationGracePeriodSeconds": 1}}}]),
        ("small", "spec.podTemplates", "of a pool that is not there", [{"pool": "none", "patch": {"metadata": {}}}]),
        ("small", "spec.podTemplates", "with an annotation",
         [{"component": "decode", "patch": {"metadata": {"annotations": {"example.com/a": "b"}}}}]),
        ("front", "spec.routing.qos.defaultClass", "that is not there", "nobody"),
        ("front", "spec.routing.qos.tenants.0.classes", "that are not there", ["nobody"]),
        ("front", "spec.slo.classes", "of one name", [{"name": "chat", "ttft": "1s"}, {"name": "chat", "ttft": "2s"}]),
        ("front", "spec.workload.classes.0.share", "of nothing", 0),
        ("pools", "spec.capacity.pools.1.gpus", "of none", 0),
        ("pools", "spec.planning.budgetPerHour", "that nothing meets", 0.001),
        ("small", "metadata.name", "that is too long", "a" * 64),
        ("small", "metadata.name", "that is no name of a Service", "1-service"),
    ]
)  # fmt: skip
