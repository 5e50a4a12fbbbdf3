"""Invalid manifests: ``kubectl apply`` refuses a wrong field, a broken rule over several, and wrong cost profiles."""

from weft_operator_tests.invalid_case import Case, one_change
from weft_operator_tests.invalid_cluster import CLUSTER_CASES
from weft_operator_tests.invalid_engines import ENGINE_CASES
from weft_operator_tests.invalid_front import FRONT_CASES
from weft_operator_tests.invalid_kv_cache import KV_CACHE_CASES
from weft_operator_tests.invalid_rules import POOL, RULE_CASES
from weft_operator_tests.valid import PROFILE, REMOVED, changed

CASES: tuple[Case, ...] = (
    # Words of the schema: unknown, missing, of the wrong type, out of bounds.
    one_change("unknown-field", "spec.modell", {"name": "x"}, words=("unknown field", "spec.modell")),
    one_change("unknown-nested-field", "spec.routing.alhpa", 0.9, words=("unknown field", "spec.routing.alhpa")),
    one_change("no-spec", "spec", REMOVED, words=("spec: Required value",)),
    one_change("no-slo", "spec.slo", REMOVED, words=("spec.slo: Required value",)),
    one_change("no-model-name", "spec.model", {"maxModelLen": 4096}, words=("spec.model.name: Required value",)),
    one_change("no-pools", "spec.capacity.pools", [], words=("spec.capacity.pools", "at least 1 items")),
    one_change("gpus-as-text", "spec.capacity.gpus", "many", words=("spec.capacity.gpus", "must be of type integer")),
    one_change("endless-quantity", "spec.engine.sharedMemory", 1e300, words=("spec.engine.sharedMemory",)),
    one_change("quantity-of-64-bits", "spec.engine.sharedMemory", 2**63, words=("spec.engine.sharedMemory",)),
    one_change("no-gpu", "spec.capacity.gpus", 0, words=("spec.capacity.gpus", "greater than or equal to 1")),
    one_change("duration-without-unit", "spec.slo.ttft", "5", words=("spec.slo.ttft", "should match")),
    one_change("duration-of-words", "spec.slo.itl", "fast", words=("spec.slo.itl", "should match")),
    one_change("odd-percentile", "spec.slo.percentile", 97, words=("spec.slo.percentile", 'supported values: "50"')),
    one_change(
        "attainment-above-one", "spec.slo.attainment", 90, words=("spec.slo.attainment", "less than or equal to 1")
    ),
    one_change("no-load", "spec.workload.arrivalRate", 0, words=("spec.workload.arrivalRate", "greater than 0")),
    one_change("half-a-round", "spec.workload.rounds.mean", 0.5, words=("spec.workload.rounds.mean", "equal to 1")),
    one_change("alpha-of-zero", "spec.routing.alpha", 0, words=("spec.routing.alpha", "greater than 0")),
    one_change("beta-above-two", "spec.routing.beta", 2.5, words=("spec.routing.beta", "less than or equal to 2")),
    one_change("window-of-seven", "spec.routing.window", 7, words=("spec.routing.window", "less than or equal to 6")),
    one_change("unknown-policy", "spec.routing.policy", "random", words=("spec.routing.policy", "Unsupported value")),
    one_change("unknown-engine", "spec.engine.type", "tgi", words=("spec.engine.type", "Unsupported value")),
    one_change(
        "unknown-objective", "spec.planning.objective", "fun", words=("spec.planning.objective", "Unsupported value")
    ),
    one_change("no-coordinator", "spec.coordinator.replicas", 0, words=("spec.coordinator.replicas", "equal to 1")),
    one_change(
        "time-runs-backwards", "spec.engine.mock.timeScale", -1, words=("spec.engine.mock.timeScale", "greater than 0")
    ),
    one_change(
        "no-lease", "spec.engine.kvTransfer.leaseSeconds", 0, words=("leaseSeconds", "greater than or equal to 5")
    ),
    one_change(
        "proofs-without-end",
        "spec.engine.kvTransfer.proofSeconds",
        1,
        words=("proofSeconds", "greater than or equal to 2"),
    ),
    one_change(
        "proofs-that-never-come",
        "spec.engine.kvTransfer.proofSeconds",
        3601,
        words=("proofSeconds", "less than or equal to 3600"),
    ),
    one_change("short-context", "spec.model.maxModelLen", 16, words=("spec.model.maxModelLen", "equal to 256")),
    one_change("plain-resource", "spec.capacity.pools.0.resource", "gpu", words=("pools[0].resource", "should match")),
    one_change(
        "unknown-role", "spec.capacity.pools.0.roles", ["verify"], words=("pools[0].roles[0]", "Unsupported value")
    ),
    one_change(
        "same-role-twice", "spec.capacity.pools.0.roles", ["decode", "decode"], words=("roles[1]", "Duplicate value")
    ),
    one_change(
        "bad-quantity", "spec.coordinator.resources.limits", {"memory": "lots"}, words=("memory", "should match")
    ),
    one_change(
        "same-pool-twice",
        "spec.capacity.pools",
        [POOL, POOL],
        words=("spec.capacity.pools[1]", "Duplicate value"),
    ),
    one_change(
        "same-variable-twice",
        "spec.engine.env",
        [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
        words=("spec.engine.env[1]", "Duplicate value"),
    ),
    *RULE_CASES,
    *CLUSTER_CASES,
    *FRONT_CASES,
    *ENGINE_CASES,
    *KV_CACHE_CASES,
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
        "regimes-for-large-batches-only",
        changed(PROFILE, "spec.degrees.0.decode.0.fromBatch", 32),
        rule="spec.degrees.decode: every row has fromBatch; one must apply to every batch",
    ),
    Case(
        "regimes-for-long-contexts-only",
        changed(PROFILE, "spec.degrees.0.prefill.0.fromContext", 1024),
        rule="spec.degrees.prefill: every row has fromContext; one must apply to every prompt",
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

OPERATOR_ONLY_CASES: tuple[Case, ...] = (
    Case(
        "transfer-of-no-degree",
        changed(PROFILE, "spec.transfers.0.source", 2),
        rule="spec.transfers: names a degree that spec.degrees lacks; add the degree or remove the transfer",
    ),
)
"""Cost profiles that ``weft plan`` and the operator refuse, but no API server: the rule would cost it too much."""
