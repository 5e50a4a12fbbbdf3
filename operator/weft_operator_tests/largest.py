"""The largest service that the schema admits: every list, map and text as long as its bound, every field that may be.

Made from the schema itself, so that a new field is in it at once; ``GIVEN`` has the values that rules over several
fields ask for.
"""

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any, get_args

from weft_operator.api.crd import service_crd
from weft_operator.api.objects import Manifest
from weft_operator.api.service import MAX_NAME_OF_PARTS
from weft_operator.api.triggers import TriggerMetric

Schema = Mapping[str, Any]
LEFT_OUT = object()
MINUTE = "000000000000001m"
LONGEST_DURATION = 16
FILLED_MAPS = 16
"""Entries in maps of any content, which have no bound of their own."""

ShapeName = str

_TEXTS: Mapping[str, Callable[[int, int], str]] = {
    r"^[a-z0-9.-]+/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$": lambda number, most: _filled(
        f"a{number}.example/", most
    ),
    r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$": lambda _, most: "10s".rjust(most, "0"),
    r"^([01][0-9]|2[0-3]):[0-5][0-9]$": lambda _, __: "08:00",
    r"^[a-z0-9]+/[-a-z0-9]+$": lambda _, __: "ampd/gaia",
    r"^[0-9][0-9A-Za-z.+-]*$": lambda _, most: _filled("1.", most),
    r"^https?://[^\s?#]+$": lambda _, most: _filled("https://", most),
    r"^https?://[^\s@]+$": lambda _, most: _filled("https://", most),
    r"^https?://[^\s/?#@]+(/[^\s?#@]*)?$": lambda _, most: _filled("https://", most),
    r"^https://\S+$": lambda _, most: _filled("https://", most),
    r"^https?://[^\s/?#@]+$": lambda _, most: _filled("https://", most),
    r"^(\*|https?://[a-z0-9.\[\]:-]+)$": lambda _, most: _filled("https://", most),
    r"^[0-9a-fA-F.:]+/[0-9]{1,3}$": lambda _, __: "fd00:0000:0000:0000:0000:0000:0000:0000/128",
    r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$": lambda number, most: _filled(
        f"h{number}", most
    ),
    r"^(\*\.)?([a-z0-9]([-a-z0-9]*[a-z0-9])?\.)+[a-z]([-a-z0-9]*[a-z0-9])?(:[0-9]{1,5})?$": lambda number, most: (
        _filled(f"h{number}", most - 8) + ".example"
    ),
    r"^[a-z][a-z0-9+.-]*://[^\s/?#@]+:[0-9]{1,5}(/[^\s?#@]*)?$": lambda _, most: _filled("lm://a:1/", most),
    r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?:[0-9]{1,5}$": lambda _, most: "a" * (most - 2) + ":1",
    r"^(P2PHANDSHAKE|https?://[^\s?#@]+)$": lambda _, most: _filled("https://", most),
    r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$": lambda _, __: "America/Argentina/ComodRivadavia",
}
"""Texts of a pattern that letters and digits alone do not meet."""


def _filled(begins: str, most: int) -> str:
    return begins + "a" * (most - len(begins))


def _key(last: str) -> str:
    """Return the key of a label, as long as one may be."""
    return ".".join(["a" * 62] * 4) + f"/{'a' * 62}{last}"


def _class(number: int) -> str:
    return _filled(f"a{number}", 63)


def _shares(count: int) -> list[float]:
    return [0.0, *(round(number / (count - 1), 15) for number in range(1, count - 1)), 1.0]


_PREFERENCES = {
    "preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": {"matchExpressions": [{"key": f"a{number}", "operator": "Exists"}]}}
        for number in range(FILLED_MAPS)
    ]
}

GIVEN: Mapping[str, Any] = {
    "spec.model.maxModelLen": 1_000_000,
    "spec.model.servedName": "s" * 128,
    "spec.model.adapters[].name": lambda number: f"n{number}".ljust(128, "n"),
    "spec.model.adapters[].source.huggingFace": LEFT_OUT,
    "spec.model.source.huggingFace": LEFT_OUT,
    "spec.model.source.oci": LEFT_OUT,
    "spec.model.source.pvc": LEFT_OUT,
    "spec.model.source.s3.cache.claim.existingClaim": LEFT_OUT,
    "spec.model.source.s3.cache.node": LEFT_OUT,
    "spec.model.config": {f"setting_{number}": "a" * 64 for number in range(64)},
    "spec.engine.type": "vllm",
    "spec.engine.mock": LEFT_OUT,
    "spec.engine.speculative.method": "eagle",
    "spec.engine.speculative.model": "/models/" + "a" * 504,
    "spec.engine.neuron": LEFT_OUT,
    "spec.engine.kvTransfer.blockTokens": {"prefill": 128, "decode": 128},
    "spec.kvCache.disk.claim": LEFT_OUT,
    "spec.kvCache.disk.path": LEFT_OUT,
    "spec.kvCache.remote": LEFT_OUT,
    "spec.gateway.mode": "endpointPicker",
    "spec.gateway.failureMode": "FailClose",
    "spec.slo.ttft": MINUTE,
    "spec.slo.classes[].ttft": MINUTE,
    "spec.workload.preset": LEFT_OUT,
    "spec.workload.traceConfigMap": LEFT_OUT,
    "spec.workload.arrivals": {"process": "replayed", "timestamps": [1e5 + number / 7 for number in range(2000)]},
    "spec.workload.rounds.mean": 3.3333333333333335,
    "spec.workload.firstPrompt.mean": 1000.3333333333334,
    "spec.workload.increment.mean": 1000.3333333333334,
    "spec.workload.decode.mean": 1000.3333333333334,
    "spec.workload.classes[].name": _class,
    "spec.slo.classes[].name": _class,
    "spec.capacity.pools[].name": _class,
    "spec.capacity.pools[].degrees": [1, 2, 4, 8, 16, 32, 64],
    "spec.capacity.pools[].parallelism": [{"tp": 8, "pp": 1, "dp": 8, "ep": True}] * 8,
    "spec.capacity.pools[].roles": ["prefill", "decode"],
    "spec.capacity.pools[].resourceClaims[].degrees": [1, 2, 4, 8, 16, 32, 64],
    "spec.capacity.pools[].resource": lambda number: f"a{number}.example.com/" + "a" * 63,
    "spec.capacity.pools[].rdma.resource": "rdma.example.com/" + "a" * 63,
    "spec.capacity.pools[].topologyKey": _key("k"),
    "spec.capacity.pools[].topology.required": _key("r"),
    "spec.capacity.pools[].topology.preferred": _key("p"),
    "spec.capacity.pools[].tolerations[].key": _key("t"),
    "spec.capacity.pools[].tolerations[].operator": "Equal",
    "spec.capacity.pools[].affinity": {"nodeAffinity": _PREFERENCES},
    "spec.profile.ref": LEFT_OUT,
    "spec.profile.analytic": LEFT_OUT,
    "spec.profile.measure.budget": MINUTE,
    "spec.profile.measure.degrees": [1, 2, 4, 8, 16, 32, 64],
    "spec.planning.objective": "cost",
    "spec.planning.layouts": ["disaggregated", "colocated"],
    "spec.planning.prefill.min": 1,
    "spec.planning.decode.min": 1,
    "spec.planning.ratio.min": 1,
    "spec.planning.prometheus.window": MINUTE,
    "spec.planning.prometheus.headers[].value": LEFT_OUT,
    "spec.planning.scaleToZero.after": MINUTE,
    "spec.planning.drift.shrinkAfter": MINUTE,
    "spec.planning.triggers[].metric": lambda number: get_args(TriggerMetric)[number],
    "spec.planning.triggers[].target": 0.8,
    "spec.planning.triggers[].lowerBound": 0.4,
    "spec.planning.triggers[].window": MINUTE,
    "spec.planning.triggers[].cooldown": MINUTE,
    "spec.planning.schedules[].gpus": 4096,
    "spec.planning.schedules[].days": ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"],
    "spec.routing.policy": "weft",
    "spec.routing.mode": LEFT_OUT,
    "spec.routing.tableConfigMapRef": LEFT_OUT,
    "spec.routing.alpha": 0.9,
    "spec.routing.beta": 0.85,
    "spec.routing.params": {"centre": 1.0, "width": 1.0},
    "spec.routing.sessionTTL": MINUTE,
    "spec.routing.classes[].name": _class,
    "spec.routing.classes[].policy": "weft",
    "spec.routing.classes[].mode": LEFT_OUT,
    "spec.routing.classes[].params": {"centre": 1.0, "width": 1.0},
    "spec.routing.qos.defaultClass": _class(15),
    "spec.routing.qos.tenants[].defaultClass": _class(15),
    "spec.routing.qos.tenants[].classes[]": _class,
    "spec.scheduling.gang.scheduler": "volcano",
    "spec.coordinator.tolerations[].key": _key("t"),
    "spec.coordinator.tolerations[].operator": "Equal",
    "spec.coordinator.auth.jwt.jwksConfigMapRef": LEFT_OUT,
    "spec.coordinator.auth.jwt.algorithms": ["RS256", "ES256", "EdDSA"],
    "spec.podTemplates[].component": LEFT_OUT,
    "spec.podTemplates[].pool": _class,
    "spec.podTemplates[].patch": {
        "metadata": {"annotations": {f"example.com/note-{number}": "a" * 256 for number in range(FILLED_MAPS)}}
    },
    **{
        f"spec.networkPolicy.{peers}[].ipBlock": LEFT_OUT
        for peers in ("clientsFrom", "workersFrom", "metricsFrom", "egress[].to")
    },
}
"""By path, with [] for any entry of a list: a value, a function of the entry's number, or LEFT_OUT."""

SHAPES: Mapping[ShapeName, Mapping[str, Any]] = {
    "quantiles": {"at": _shares(64)},
    "histogram": {"edges": 64, "weights": 63},
}
"""Of the shapes of a figure there may be one."""


def largest_service(shape: ShapeName) -> Manifest:
    """Return it, with the distributions of its workload in one of the two shapes."""
    crd = service_crd()
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    metadata = {"name": "a" * MAX_NAME_OF_PARTS, "namespace": "default"}
    kind = {"apiVersion": "weft.dev/v1alpha1", "kind": "DisaggInferenceService", "metadata": metadata}
    return {**kind, "spec": _largest(schema, "spec", 0, shape)}


def _largest(schema: Schema, path: str, number: int, shape: ShapeName) -> Any:
    if path in GIVEN:
        given = GIVEN[path]
        if given is LEFT_OUT:
            return LEFT_OUT
        return given(number) if callable(given) else copy.deepcopy(given)
    if schema.get("x-kubernetes-int-or-string"):
        return "1.5Gi".rjust(schema["maxLength"], "0")
    if "enum" in schema:
        return max(schema["enum"], key=lambda value: len(str(value)))
    match schema.get("type"):
        case "object":
            return _object(schema, path, number, shape)
        case "array":
            return _array(schema, path, shape)
        case "string":
            return _text(schema, number)
        case "integer":
            return schema.get("maximum", 2**31 - 1)
        case "number":
            return schema.get("maximum", 1e6) * (1 - 1 / 3e9)
    return True


def _object(schema: Schema, path: str, number: int, shape: ShapeName) -> dict[str, Any]:
    if "additionalProperties" in schema:
        inner = schema["additionalProperties"]
        count = range(schema["maxProperties"])
        return {_filled(f"example.com/a{n}", 75): _largest(inner, f"{path}{{}}", n, shape) for n in count}
    found = {}
    for name, inner in schema.get("properties", {}).items():
        if {"quantiles", "histogram"} <= schema["properties"].keys() and name in {"cv", *SHAPES} - {shape}:
            continue
        value = _largest(inner, f"{path}.{name}", number, shape)
        if value is not LEFT_OUT:
            found[name] = value
    return found


def _array(schema: Schema, path: str, shape: ShapeName) -> list[Any]:
    name = path.rpartition(".")[2]
    if path.endswith(f"{shape}.at"):
        return _shares(schema["maxItems"])
    count = SHAPES.get(shape, {}).get(name, schema["maxItems"]) if f"{shape}." in path else schema["maxItems"]
    return [_largest(schema["items"], f"{path}[]", number, shape) for number in range(count)]


def _text(schema: Schema, number: int) -> str:
    return pattern_text(schema, schema["maxLength"], number)


def pattern_text(schema: Schema, length: int, number: int = 0) -> str:
    """Return a text that the schema admits, of this length where its pattern has one; the number tells them apart."""
    fill = _TEXTS.get(schema.get("pattern", ""))
    return fill(number, length) if fill is not None else _filled(f"a{number}", length)


def shortened(service: Manifest, most: int) -> Manifest:
    """Return a service whose spec has at most so many bytes: the longest of its lists lose their last entries."""
    spec = copy.deepcopy(service["spec"])
    while len(json.dumps(spec, separators=(",", ":"))) > most:
        lists = (
            spec["engine"]["env"],
            spec["engine"]["args"],
            *(spec["engine"][role][name] for role in ("prefill", "decode") for name in ("args", "env")),
            spec["capacity"]["pools"][1:] and spec["capacity"]["pools"],
            spec["routing"]["qos"]["tenants"],
            spec["podTemplates"],
            spec["workload"]["classes"],
            spec["coordinator"]["requests"]["allowedFields"],
            spec["coordinator"]["requests"]["allowedMediaHosts"],
            *(spec["networkPolicy"][peers] for peers in ("clientsFrom", "workersFrom", "metricsFrom", "egress")),
        )
        max(lists, key=lambda entries: len(json.dumps(entries))).pop()
        classes = {item["name"] for item in spec["workload"]["classes"]}
        spec["slo"]["classes"] = [item for item in spec["slo"]["classes"] if item["name"] in classes]
        pools = {pool["name"] for pool in spec["capacity"]["pools"]}
        spec["podTemplates"] = [item for item in spec["podTemplates"] if item["pool"] in pools]
    return {**service, "spec": spec}
