"""Manifests that ``kubectl apply`` must refuse, each with the words that tell the user what is wrong.

Every case is one change of a valid manifest. ``rule`` is the whole message of a rule over several fields, which
the operator's own check gives in the same words; ``words`` are parts of the API server's message elsewhere.
"""

from dataclasses import dataclass
from typing import Any

from weft_operator.manifest import Manifest
from weft_operator_tests.valid import PROFILE, REMOVED, VLLM, changed, service, vllm_service


@dataclass(frozen=True)
class Case:
    """One invalid manifest."""

    name: str
    body: Manifest
    rule: str = ""
    words: tuple[str, ...] = ()

    @property
    def expected(self) -> tuple[str, ...]:
        """Return what the API server's message must hold."""
        return (self.rule,) if self.rule else self.words


def _case(name: str, path: str, value: Any, *, rule: str = "", words: tuple[str, ...] = ()) -> Case:
    return Case(name, changed(service(), path, value), rule, words)


POOL = {"name": "h20", "gpuType": "nvidia-h20"}

CASES: tuple[Case, ...] = (
    # Words of the schema: unknown, missing, of the wrong type, out of bounds.
    _case("unknown-field", "spec.modell", {"name": "x"}, words=("unknown field", "spec.modell")),
    _case("unknown-nested-field", "spec.routing.alhpa", 0.9, words=("unknown field", "spec.routing.alhpa")),
    _case("no-spec", "spec", REMOVED, words=("spec: Required value",)),
    _case("no-slo", "spec.slo", REMOVED, words=("spec.slo: Required value",)),
    _case("no-model-name", "spec.model", {"maxModelLen": 4096}, words=("spec.model.name: Required value",)),
    _case("no-pools", "spec.capacity.pools", [], words=("spec.capacity.pools", "at least 1 items")),
    _case("gpus-as-text", "spec.capacity.gpus", "many", words=("spec.capacity.gpus", "must be of type integer")),
    _case("one-gpu", "spec.capacity.gpus", 1, words=("spec.capacity.gpus", "greater than or equal to 2")),
    _case("duration-without-unit", "spec.slo.ttft", "5", words=("spec.slo.ttft", "should match")),
    _case("duration-of-words", "spec.slo.itl", "fast", words=("spec.slo.itl", "should match")),
    _case("odd-percentile", "spec.slo.percentile", 97, words=("spec.slo.percentile", 'supported values: "50"')),
    _case("attainment-above-one", "spec.slo.attainment", 90, words=("spec.slo.attainment", "less than or equal to 1")),
    _case("no-load", "spec.workload.arrivalRate", 0, words=("spec.workload.arrivalRate", "greater than 0")),
    _case("half-a-round", "spec.workload.rounds.mean", 0.5, words=("spec.workload.rounds.mean", "equal to 1")),
    _case("alpha-of-zero", "spec.routing.alpha", 0, words=("spec.routing.alpha", "greater than 0")),
    _case("beta-above-two", "spec.routing.beta", 2.5, words=("spec.routing.beta", "less than or equal to 2")),
    _case("window-of-seven", "spec.routing.window", 7, words=("spec.routing.window", "less than or equal to 6")),
    _case("unknown-policy", "spec.routing.policy", "random", words=("spec.routing.policy", "Unsupported value")),
    _case("unknown-engine", "spec.engine.type", "tgi", words=("spec.engine.type", "Unsupported value")),
    _case(
        "unknown-objective", "spec.planning.objective", "fun", words=("spec.planning.objective", "Unsupported value")
    ),
    _case("no-coordinator", "spec.coordinator.replicas", 0, words=("spec.coordinator.replicas", "equal to 1")),
    _case(
        "time-runs-backwards", "spec.engine.mock.timeScale", -1, words=("spec.engine.mock.timeScale", "greater than 0")
    ),
    _case("no-lease", "spec.engine.kvTransfer.leaseSeconds", 0, words=("leaseSeconds", "greater than or equal to 5")),
    _case("short-context", "spec.model.maxModelLen", 16, words=("spec.model.maxModelLen", "equal to 256")),
    _case("plain-resource", "spec.capacity.pools.0.resource", "gpu", words=("pools[0].resource", "should match")),
    _case("unknown-role", "spec.capacity.pools.0.roles", ["verify"], words=("pools[0].roles[0]", "Unsupported value")),
    _case(
        "same-role-twice", "spec.capacity.pools.0.roles", ["decode", "decode"], words=("roles[1]", "Duplicate value")
    ),
    _case("bad-quantity", "spec.coordinator.resources.limits", {"memory": "lots"}, words=("memory", "should match")),
    _case(
        "same-pool-twice",
        "spec.capacity.pools",
        [POOL, POOL],
        words=("spec.capacity.pools[1]", "Duplicate value"),
    ),
    _case(
        "same-variable-twice",
        "spec.engine.env",
        [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
        words=("spec.engine.env[1]", "Duplicate value"),
    ),
    # Words of rules over several fields.
    _case(
        "long-name",
        "metadata.name",
        "a" * 41,
        rule="metadata.name: use at most 40 characters a-z, 0-9 and -, beginning with a letter; "
        "names of workers and Services are made from it",
    ),
    _case(
        "name-with-dot",
        "metadata.name",
        "llama.70b",
        rule="metadata.name: use at most 40 characters a-z, 0-9 and -, beginning with a letter; "
        "names of workers and Services are made from it",
    ),
    _case(
        "engine-to-come",
        "spec.engine.type",
        "sglang",
        rule="spec.engine.type: sglang and tensorrt-llm are not supported yet; use vllm or mock",
    ),
    _case(
        "vllm-without-image",
        "spec.engine.type",
        "vllm",
        rule="spec.engine.image: type vllm needs an image; name one with vLLM 0.32 or newer",
    ),
    Case(
        "mock-settings-for-vllm",
        changed(vllm_service(), "spec.engine", {**VLLM, "mock": {"timeScale": 0.5}}),
        rule="spec.engine.mock: only for type mock; remove it or set spec.engine.type to mock",
    ),
    Case(
        "argument-of-the-operator",
        changed(vllm_service(), "spec.engine.args", ["--tensor-parallel-size=2"]),
        rule="spec.engine.args: the operator sets --host, --port, --model, --served-model-name, "
        "--tensor-parallel-size, --pipeline-parallel-size, --kv-transfer-config, --max-model-len, --dtype, "
        "--kv-cache-dtype, --gpu-memory-utilization, --api-key from other fields; remove them here",
    ),
    Case(
        "argument-with-underscores",
        changed(vllm_service(), "spec.engine.args", ["--kv_transfer_config", "{}"]),
        rule="spec.engine.args: the operator sets --host, --port, --model, --served-model-name, "
        "--tensor-parallel-size, --pipeline-parallel-size, --kv-transfer-config, --max-model-len, --dtype, "
        "--kv-cache-dtype, --gpu-memory-utilization, --api-key from other fields; remove them here",
    ),
    _case(
        "variable-of-the-operator",
        "spec.engine.env",
        [{"name": "POD_IP", "value": "10.0.0.1"}],
        rule="spec.engine.env: names that begin with WEFT_, POD_, NODE_ or VLLM_NIXL_ are set by the operator; "
        "remove this one",
    ),
    _case(
        "two-model-sources",
        "spec.model.source",
        {"huggingFace": {}, "pvc": {"claimName": "models"}},
        rule="spec.model.source: give exactly one of huggingFace and pvc",
    ),
    _case(
        "ttft-below-itl",
        "spec.slo",
        {"ttft": "30ms", "itl": "40ms"},
        rule="spec.slo.ttft: must be longer than spec.slo.itl; a prefill takes longer than one decode step",
    ),
    _case(
        "itl-of-zero",
        "spec.slo.itl",
        "0ms",
        rule="spec.slo.itl: must be longer than 0; 50ms is common",
    ),
    _case(
        "degree-of-three",
        "spec.capacity.pools.0.degrees",
        [1, 3],
        rule="spec.capacity.pools.degrees: must be powers of two (1, 2, 4, 8, 16, 32, 64)",
    ),
    _case(
        "degree-above-the-node",
        "spec.capacity.pools.0.degrees",
        [8, 16],
        rule="spec.capacity.pools.degrees: a worker cannot span nodes yet; remove the degrees above gpusPerNode",
    ),
    _case(
        "nobody-prefills",
        "spec.capacity.pools.0.roles",
        ["decode"],
        rule="spec.capacity.pools: no pool has the role prefill; add it to the roles of one",
    ),
    _case(
        "nobody-decodes",
        "spec.capacity.pools.0.roles",
        ["prefill"],
        rule="spec.capacity.pools: no pool has the role decode; add it to the roles of one",
    ),
    _case(
        "pool-above-the-budget",
        "spec.capacity.pools.0.gpus",
        32,
        rule="spec.capacity.pools.gpus: is above spec.capacity.gpus; lower it or raise the budget",
    ),
    _case(
        "rdma-is-the-gpu",
        "spec.capacity.pools.0.rdma",
        {"resource": "nvidia.com/gpu"},
        rule="spec.capacity.pools.rdma.resource: is the same as the GPU's resource; name the network device's",
    ),
    _case(
        "toleration-with-value",
        "spec.capacity.pools.0.tolerations",
        [{"key": "gpu", "operator": "Exists", "value": "h20"}],
        rule="tolerations: operator Exists takes no value; remove value or use operator Equal",
    ),
    _case(
        "toleration-without-key",
        "spec.capacity.pools.0.tolerations",
        [{"value": "h20"}],
        rule="tolerations: operator Equal needs a key; add it or use operator Exists",
    ),
    _case(
        "two-profiles",
        "spec.profile",
        {"ref": {"name": "measured"}, "analytic": {}},
        rule="spec.profile: give exactly one of ref and analytic",
    ),
    _case(
        "no-profile",
        "spec.profile",
        {},
        rule="spec.profile: give exactly one of ref and analytic",
    ),
    _case(
        "min-above-max",
        "spec.planning.prefill",
        {"min": 3, "max": 2},
        rule="spec.planning: min is above max; lower min or raise max",
    ),
    _case(
        "bounds-above-the-budget",
        "spec.planning",
        {"prefill": {"min": 10}, "decode": {"min": 7}},
        rule="spec.capacity.gpus: too few for spec.planning.prefill.min and spec.planning.decode.min workers of the "
        "smallest degrees; raise gpus, lower a min, or allow a smaller degree",
    ),
    _case(
        "session-longer-than-context",
        "spec.model.maxModelLen",
        4096,
        rule="spec.workload: the mean session is longer than spec.model.maxModelLen; "
        "raise maxModelLen or shorten the workload",
    ),
    _case("variation-below-zero", "spec.workload.decode.cv", -0.5, words=("spec.workload.decode.cv", "equal to 0")),
    _case(
        "unknown-arrivals", "spec.workload.arrivals", {"process": "pareto"}, words=("arrivals.process", "Unsupported")
    ),
    _case(
        "gap-quantiles-without-unit",
        "spec.workload.gap",
        {"mean": "2s", "quantiles": {"at": [0, 1], "values": ["0", "4"]}},
        words=("spec.workload.gap.quantiles.values[0]", "should match"),
    ),
    _case(
        "class-without-share",
        "spec.workload.classes",
        [{"name": "chat"}],
        words=("spec.workload.classes[0].share: Required value",),
    ),
    _case(
        "same-class-twice",
        "spec.workload.classes",
        [{"name": "chat", "share": 1}, {"name": "chat", "share": 2}],
        words=("spec.workload.classes[1]", "Duplicate value"),
    ),
    _case("preset-of-words", "spec.workload.preset", "GAIA", words=("spec.workload.preset", "should match")),
    _case(
        "two-shapes",
        "spec.workload.increment",
        {"mean": 800, "cv": 1, "quantiles": {"at": [0, 1], "values": [1, 1600]}},
        rule="spec.workload: give at most one of cv, quantiles and histogram of a figure; remove the others",
    ),
    _case(
        "quantiles-that-end-early",
        "spec.workload.decode.quantiles",
        {"at": [0, 0.5], "values": [1, 600]},
        rule="spec.workload.quantiles: at must rise from 0 to 1 and be as long as values; correct the lists",
    ),
    _case(
        "quantiles-that-fall",
        "spec.workload.decode.quantiles",
        {"at": [0, 0.5, 1], "values": [1, 600, 500]},
        rule="spec.workload.quantiles: values must not fall; sort them",
    ),
    _case(
        "gaps-that-fall",
        "spec.workload.gap.quantiles",
        {"at": [0, 0.5, 1], "values": ["0s", "1m", "50s"]},
        rule="spec.workload.quantiles: values must not fall; sort them",
    ),
    _case(
        "histogram-without-weight",
        "spec.workload.rounds.histogram",
        {"edges": [1, 5, 9], "weights": [0, 0]},
        rule="spec.workload.histogram: edges must not fall and be one more than weights, of which one must be above 0; "
        "correct the lists",
    ),
    _case(
        "bursts-without-variation",
        "spec.workload.arrivals",
        {"process": "gamma"},
        rule="spec.workload.arrivals.cv: needed for process gamma and for no other; add or remove it",
    ),
    _case(
        "replay-of-nothing",
        "spec.workload.arrivals",
        {"process": "replayed"},
        rule="spec.workload.arrivals.timestamps: needed for process replayed and for no other; add or remove them",
    ),
    _case(
        "timestamps-that-fall",
        "spec.workload.arrivals",
        {"process": "replayed", "timestamps": [0, 3, 2]},
        rule="spec.workload.arrivals.timestamps: must not fall, and not all be the same; sort them",
    ),
    _case(
        "preset-and-trace",
        "spec.workload",
        {"preset": "ampd/gaia", "traceConfigMap": {"name": "trace", "key": "all"}, "arrivalRate": 1},
        rule="spec.workload: give one of preset and traceConfigMap; remove the other",
    ),
    _case(
        "no-increment",
        "spec.workload.increment",
        REMOVED,
        rule="spec.workload: needs rounds, firstPrompt, increment and decode; add them, a preset or a traceConfigMap",
    ),
    _case(
        "preset-without-rate",
        "spec.workload",
        {"preset": "ampd/gaia"},
        rule="spec.workload.arrivalRate: is needed, in sessions per second; add it",
    ),
    _case(
        "slo-of-no-class",
        "spec.slo.classes",
        [{"name": "chat", "ttft": "1s"}],
        rule="spec.slo.classes: names a class that spec.workload.classes lacks; add it there or remove it here",
    ),
    Case(
        "class-slo-of-zero",
        changed(
            changed(service(), "spec.workload.classes", [{"name": "chat", "share": 1}]),
            "spec.slo.classes",
            [{"name": "chat", "itl": "0s"}],
        ),
        rule="spec.slo.classes: ttft and itl must be longer than 0; leave one out to take the service's",
    ),
    _case(
        "mode-of-another-policy",
        "spec.routing.mode",
        "ia",
        rule="spec.routing.mode: only policy weft has modes; remove it, or set policy weft",
    ),
    _case(
        "mode-the-router-lacks",
        "spec.routing",
        {"policy": "weft", "mode": "imd"},
        rule="spec.routing.mode: imd and whole-or-chunked need local prefills in chunks, which the router cannot run "
        "yet; use ia or remote-jsq",
    ),
    _case(
        "binding-the-router-lacks",
        "spec.routing.binding",
        "prefix-aware",
        rule="spec.routing.binding: prefix-aware and kv-aware need to know what decode workers' prefix caches hold, "
        "which the router does not yet; use one of kv-headroom, least-requests, round-robin",
    ),
    _case(
        "parameter-of-another-policy",
        "spec.routing",
        {"policy": "fixed-x", "params": {"w_ttft": 1}},
        rule="spec.routing.params: parameters of fixed-x: x (0 to 1)",
    ),
    _case(
        "parameter-out-of-range",
        "spec.routing",
        {"policy": "fixed-x", "params": {"x": 1.5}},
        rule="spec.routing.params: parameters of fixed-x: x (0 to 1)",
    ),
    _case(
        "parameters-of-ampd",
        "spec.routing",
        {"policy": "ampd", "params": {"alpha": 0.5}},
        rule="spec.routing.params: parameters of ampd: none; set spec.routing.alpha and beta",
    ),
    _case("unknown-order", "spec.routing.order", "random", words=("spec.routing.order", "Unsupported value")),
    _case("no-ageing", "spec.routing.ageingCap", 0, words=("spec.routing.ageingCap", "equal to 1")),
    _case(
        "no-statistics",
        "spec.routing.statsWindow",
        "10ms",
        rule="spec.routing.statsWindow: must be between 1s and 10m",
    ),
    _case(
        "sessions-of-a-second",
        "spec.routing.sessionTTL",
        "1s",
        rule="spec.routing.sessionTTL: must be between 1m and 168h",
    ),
    _case(
        "drain-for-a-day",
        "spec.rollout.drainTimeout",
        "24h",
        rule="spec.rollout.drainTimeout: must be between 1s and 1h",
    ),
)

PROFILE_CASES: tuple[Case, ...] = (
    Case(
        "negative-time",
        changed(PROFILE, "spec.degrees.0.decode.0.alpha", -1),
        words=("degrees[0].decode[0].alpha", "equal to 0"),
    ),
    Case("no-degrees", changed(PROFILE, "spec.degrees", []), words=("spec.degrees", "at least 1 items")),
    Case(
        "same-degree-twice",
        changed(PROFILE, "spec.degrees.1.degree", 4),
        words=("spec.degrees[1]", "Duplicate value"),
    ),
    Case(
        "transfer-of-no-degree",
        changed(PROFILE, "spec.transfers.0.source", 2),
        rule="spec.transfers: names a degree that spec.degrees lacks; add the degree or remove the transfer",
    ),
    Case(
        "half-of-the-experts",
        changed(PROFILE, "spec.degrees.0.decode.0.expertShare", 0.1),
        rule="spec.degrees.decode: give both of expertsSeconds and expertShare, or neither",
    ),
    Case(
        "a-third-of-the-chunk",
        changed(PROFILE, "spec.degrees.0.decode.0.perChunkPair", 1e-9),
        rule="spec.degrees.decode: give all of perChunkToken, perChunkPair and perChunkContext, or none",
    ),
)
