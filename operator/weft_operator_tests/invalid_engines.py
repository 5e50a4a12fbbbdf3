"""Services that ``kubectl apply`` must refuse for what their engine cannot do, and for who may reach their pods."""

from functools import reduce
from typing import Any

from weft_operator_tests.invalid_case import Case, managed_flags, managed_flags_of_role
from weft_operator_tests.valid import (
    REMOVED,
    changed,
    neuron_service,
    service,
    sglang_service,
    tensorrt_llm_service,
    vllm_service,
)

_BLOCKS = (
    "spec.engine.kvTransfer.blockTokens: blocks of these sizes cannot pair; for vllm decode must be a multiple of "
    "prefill, for sglang and tensorrt-llm both must be the same"
)
_ONE_WAY = (
    "spec.engine.kvTransfer.bidirectional: sglang, tensorrt-llm and neuron cannot read a session's history back from "
    "its decode worker; set it to false"
)
_NO_MPI = (
    "spec.engine.kvTransfer.connector: mpi moves KV only between processes of one MPI world, and every worker is "
    "started on its own; choose nixl, or ucx for tensorrt-llm"
)
_NO_UCX = (
    "spec.engine.kvTransfer.connector: only tensorrt-llm takes ucx; set it to nixl, which itself moves KV over UCX"
)
_SGLANG, _TENSORRT = managed_flags("sglang"), managed_flags("tensorrt-llm")
_IMAGE = (
    "spec.engine.image: is needed for every type but mock; name one with vLLM 0.32, SGLang 0.5, "
    "TensorRT-LLM 1.3 or newer, or Neuron's fork of vLLM 0.9.1"
)
_NO_LOCAL_LAYOUT = (
    "spec.planning.layouts: decode workers of sglang and neuron take only what a prefill worker computed; remove "
    "colocated"
)
_FIXED_ROLES = (
    "spec.planning.layouts: a worker of sglang, tensorrt-llm and neuron starts with one role and cannot have both; "
    "remove symmetric and hybrid"
)
_NO_LOCAL_POLICY = (
    "spec.routing.policy: decode workers of sglang and neuron cannot prefill; choose another policy, such as weft"
)
_PLUGIN = "spec.engine.plugin: there is a plug-in for vllm only; remove it"
_PEER = (
    "spec.networkPolicy: an entry needs namespaceSelector, podSelector or both, or ipBlock alone; "
    "name one and remove the rest"
)


def _case(name: str, body: dict[str, Any], path: str, value: Any, rule: str) -> Case:
    return Case(name, changed(body, path, value), rule=rule)


def _speculative(name: str, body: dict[str, Any], value: dict[str, Any], rule: str, **parts: Any) -> Case:
    for path, part in parts.items():
        body = changed(body, path.replace("__", "."), part)
    return _case(f"speculative-{name}", body, "spec.engine.speculative", value, rule)


_EAGLE = {"method": "eagle", "model": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"}
_SPECULATIVE: tuple[Case, ...] = (
    _speculative(
        "eagle-alone",
        vllm_service(),
        {"method": "eagle"},
        "spec.engine.speculative.model: eagle needs a draft model that was trained for this one; name it",
    ),
    _speculative(
        "mtp-draft",
        vllm_service(),
        {**_EAGLE, "method": "mtp"},
        "spec.engine.speculative.model: mtp and ngram have no draft model; remove it, or set method to eagle",
    ),
    *(
        _speculative(
            f"{engine}-stages",
            body,
            {"method": "ngram"},
            "spec.capacity.pools.parallelism: engines with pipeline stages cannot decode speculatively; set pp to 1, "
            "or remove spec.engine.speculative",
            spec__capacity__pools__0__parallelism=[{"tp": 4}, {"tp": 4, "pp": 2}],
        )
        for engine, body in (
            ("vllm", vllm_service()),
            ("sglang", sglang_service()),
            ("tensorrt", tensorrt_llm_service()),
        )
    ),
    _speculative(
        "sglang-ranks",
        sglang_service(),
        {"method": "ngram"},
        "spec.engine.speculative.method: sglang takes no n-grams with data-parallel attention; choose mtp or eagle, or "
        "set dp to 1 in spec.capacity.pools.parallelism",
        spec__capacity__pools__0__parallelism=[{"dp": 8, "ep": True}],
    ),
    *(
        _speculative(
            f"no-hub-{number}",
            vllm_service(),
            _EAGLE,
            "spec.engine.speculative.model: engines with cached weights reach no hub; put the draft model into the "
            "same image or volume, and give its folder, such as /models/draft",
            spec__model__source=source,
        )
        for number, source in enumerate(
            (
                {"oci": {"reference": "registry.example.com/models/llama:1"}},
                {"huggingFace": {"cache": {"claim": {"existingClaim": "weights"}}}},
            )
        )
    ),
    *(
        Case(f"speculative-{path}", changed(vllm_service(), "spec.engine.speculative", value), words=(words,))
        for path, value, words in (
            ("tokens", {"method": "mtp", "tokens": 9}, "spec.engine.speculative.tokens"),
            ("acceptance", {"method": "mtp", "acceptance": 1}, "spec.engine.speculative.acceptance"),
            ("method", {"method": "medusa"}, "spec.engine.speculative.method"),
        )
    ),
    *(
        _case(f"speculative-flag-{number}", vllm_service(), "spec.engine.args", [arg], managed_flags("vllm"))
        for number, arg in enumerate(("--speculative_config={}", "-sc.method=mtp", "--spec-tokens=2"))
    ),
    _case(
        "speculative-flag-sglang",
        sglang_service(),
        "spec.engine.args",
        ["--speculative-algo", "EAGLE"],
        managed_flags("sglang"),
    ),
)


NEURON_CASES: tuple[Case, ...] = (
    _case("neuron-reads-back", neuron_service(), "spec.engine.kvTransfer", {}, _ONE_WAY),
    _case("neuron-managed", neuron_service(), "spec.engine.args", ["--device", "cpu"], managed_flags("neuron")),
    _case("neuron-colocated", neuron_service(), "spec.planning.layouts", ["colocated"], _NO_LOCAL_LAYOUT),
    _case("neuron-symmetric", neuron_service(), "spec.planning.layouts", ["symmetric"], _FIXED_ROLES),
    _case("neuron-always-local", neuron_service(), "spec.routing.policy", "always-local", _NO_LOCAL_POLICY),
    _case(
        "neuron-blocks",
        neuron_service(),
        "spec.engine.kvTransfer.blockTokens",
        {"prefill": 16, "decode": 16},
        "spec.engine.kvTransfer.blockTokens: the engines mock and neuron have no blocks to choose; remove it",
    ),
    _case(
        "neuron-settings-of-another-engine",
        service(),
        "spec.engine.neuron",
        {},
        "spec.engine.neuron: only for type neuron; remove it or set spec.engine.type to neuron",
    ),
    _case(
        "neuron-without-sequences",
        changed(neuron_service(), "spec.engine.maxNumSeqs", REMOVED),
        "spec.engine.decode",
        {"maxNumSeqs": 8},
        "spec.engine.maxNumSeqs: neuron is compiled for a number of sequences; set it, here or in both roles",
    ),
    *(
        _case(
            f"neuron-in-chunks-{path}",
            neuron_service(),
            path,
            value,
            f"{path.removesuffix('.maxNumBatchedTokens')}.maxNumBatchedTokens: neuron computes each prompt as a whole; "
            "remove it",
        )
        for path, value in (
            ("spec.engine.maxNumBatchedTokens", 2048),
            ("spec.engine.decode", {"maxNumBatchedTokens": 2048}),
        )
    ),
    _case(
        "neuron-kv-format",
        neuron_service(),
        "spec.model.kvCacheDtype",
        "fp8",
        "spec.model.kvCacheDtype: neuron keeps KV in the model's own format; set it to auto",
    ),
    _case(
        "neuron-on-gpus",
        neuron_service(),
        "spec.capacity.pools.0.resource",
        "nvidia.com/gpu",
        "spec.capacity.pools.resource: neuron runs on aws.amazon.com/neuroncore or aws.amazon.com/neuron; name one of "
        "them",
    ),
    _case(
        "neuron-without-efa",
        neuron_service(),
        "spec.capacity.pools.0.rdma",
        REMOVED,
        "spec.capacity.pools.rdma: neuron moves KV through EFA, within a node, too; name its resource, "
        "vpc.amazonaws.com/efa, or bring it by resourceClaims",
    ),
    *(
        _case(
            f"neuron-{name}",
            neuron_service(),
            f"spec.capacity.pools.0.{field}",
            value,
            "spec.capacity.pools: a worker of neuron has the cores of one node and shares layers by tensors alone; "
            "choose degrees up to gpusPerNode and no pp, dp or ep",
        )
        for name, field, value in (
            ("over-nodes", "gpusPerNode", 16),
            ("stages", "parallelism", [{"tp": 8, "pp": 2}]),
            ("ranks", "parallelism", [{"tp": 8, "dp": 2}]),
            ("experts", "parallelism", [{"tp": 8, "ep": True}]),
        )
    ),
    *(
        _case(
            f"neuron-last-of-{field}",
            neuron_service(),
            f"spec.engine.neuron.{field}",
            [1024, 4096],
            "spec.engine.neuron: the last length of contextBuckets and tokenBuckets must be spec.model.maxModelLen; "
            "add it",
        )
        for field in ("contextBuckets", "tokenBuckets")
    ),
    _case(
        "neuron-measured",
        neuron_service(),
        "spec.profile",
        {"measure": {}},
        "spec.profile.measure: an engine of neuron keeps each prompt's KV until its decode engine has it, so it cannot "
        "be measured alone; remove measure and give a CostProfile (spec.profile.ref)",
    ),
    *(
        _case(
            f"neuron-part-of-a-chip-{field}",
            changed(neuron_service(), "spec.capacity.pools.0.resource", "aws.amazon.com/neuron"),
            f"spec.capacity.pools.0.{field}",
            value,
            "spec.capacity.pools.degrees: a worker takes whole chips by this resource, which count as 4 GPUs each; "
            "choose degrees and gpusPerNode that are multiples of 4, or resource aws.amazon.com/neuroncore",
        )
        for field, value in (("degrees", [2, 4]), ("parallelism", [{"tp": 6}]), ("gpusPerNode", 34))
    ),
)

_RANKS = {"spec.capacity.pools.0.parallelism": [{"tp": 8}, {"dp": 8, "ep": True}]}
_OLD_SGLANG: tuple[Case, ...] = tuple(
    Case(
        f"sglang-{name}",
        reduce(lambda body, one: changed(body, *one), {**_RANKS, **parts}.items(), sglang_service()),
        rule="spec.engine.image: SGLang before 0.5.10 takes no rank from the router (X-Data-Parallel-Rank), so "
        "sessions would not stay on one; use a newer image, or set dp to 1 in spec.capacity.pools.parallelism",
    )
    for name, parts in (
        ("old", {"spec.engine.image": "registry.example.com:5000/team/sglang:v0.5.9"}),
        ("old-build", {"spec.engine.image": "sglang:0.5.9.post1-cu129@sha256:ab"}),
        ("older", {"spec.engine.image": "sglang:v0.4.10"}),
        ("old-decode", {"spec.engine.decode": {"image": "sglang:v0.5.8-cu129"}}),
    )
)

ENGINE_CASES: tuple[Case, ...] = (
    *NEURON_CASES,
    *_OLD_SGLANG,
    _case("sglang-alone", service(), "spec.engine", {"type": "sglang", "kvTransfer": {"bidirectional": False}}, _IMAGE),
    _case("sglang-reads-back", sglang_service(), "spec.engine.kvTransfer.bidirectional", True, _ONE_WAY),
    _case("tensorrt-reads-back", tensorrt_llm_service(), "spec.engine.kvTransfer", {}, _ONE_WAY),
    *(
        _case(f"{kind}-{connector}", body, "spec.engine.kvTransfer.connector", connector, rule)
        for kind, body, connector, rule in (
            ("tensorrt", tensorrt_llm_service(), "mpi", _NO_MPI),
            ("vllm", vllm_service(), "mpi", _NO_MPI),
            ("vllm", vllm_service(), "ucx", _NO_UCX),
            ("sglang", sglang_service(), "ucx", _NO_UCX),
            ("neuron", neuron_service(), "ucx", _NO_UCX),
            ("mock", service(), "ucx", _NO_UCX),
        )
    ),
    _case("sglang-managed", sglang_service(), "spec.engine.args", ["--tp_size", "2"], _SGLANG),
    _case("tensorrt-managed", tensorrt_llm_service(), "spec.engine.args", ["--tp_size=2"], _TENSORRT),
    _case("sglang-abbreviated", sglang_service(), "spec.engine.args", ["--dp", "8"], _SGLANG),
    _case("sglang-config", sglang_service(), "spec.engine.args", ["--conf=/x.yaml"], _SGLANG),
    _case(
        "tensorrt-served",
        tensorrt_llm_service(),
        "spec.engine.args",
        ["--disagg_cluster_uri=x"],
        _TENSORRT,
    ),
    _case("mock-listens", service(), "spec.engine.args", ["--listen=[::]:8000"], managed_flags("mock")),
    *(
        _case(f"{role}-{args[0]}", body, f"spec.engine.{role}", {"args": args}, managed_flags_of_role(role))
        for role, body, args in (
            ("decode", vllm_service(), ["-tp", "4"]),
            ("prefill", vllm_service(), ["--max_num_seqs=8"]),
            ("prefill", sglang_service(), ["--tp_size", "2"]),
            ("decode", tensorrt_llm_service(), ["--max_batch_size=2"]),
            ("decode", service(), ["--chunk=16"]),
        )
    ),
    _case(
        "decode-flag-from-a-variable",
        vllm_service(),
        "spec.engine.decode",
        {"args": ["$(MORE)"]},
        "spec.engine.decode.args: only a value may come from a variable; write --flag=$(NAME)",
    ),
    *(
        _case(
            f"tensorrt-quantizes-{path}",
            tensorrt_llm_service(),
            path,
            value,
            f"{path.removesuffix('.quantization')}.quantization: tensorrt-llm takes it from the checkpoint and "
            "quantises nothing itself; remove it, and serve a quantised checkpoint",
        )
        for path, value in (("spec.engine.quantization", "fp8"), ("spec.engine.prefill", {"quantization": "fp8"}))
    ),
    *(
        _case(
            f"more-sequences-than-tokens-{role}",
            changed(vllm_service(), "spec.engine.maxNumBatchedTokens", 512),
            f"spec.engine.{role}",
            {"maxNumSeqs": 1024},
            f"spec.engine.maxNumSeqs: of {role} workers it is above maxNumBatchedTokens, and every sequence of a step "
            f"takes a token; raise maxNumBatchedTokens or lower maxNumSeqs, in spec.engine.{role} or spec.engine",
        )
        for role in ("prefill", "decode")
    ),
    *_SPECULATIVE,
    _case("sglang-plugin", sglang_service(), "spec.engine.plugin", "Expected", _PLUGIN),
    _case(
        "tensorrt-kv-events",
        tensorrt_llm_service(),
        "spec.engine.kvEvents",
        "Enabled",
        "spec.engine.kvEvents: tensorrt-llm and neuron publish no KV events; remove it",
    ),
    _case("sglang-pages", sglang_service(), "spec.engine.kvTransfer.blockTokens.decode", 128, _BLOCKS),
    _case(
        "tensorrt-blocks",
        tensorrt_llm_service(),
        "spec.engine.kvTransfer.blockTokens",
        {"prefill": 32, "decode": 64},
        _BLOCKS,
    ),
    _case(
        "vllm-blocks", vllm_service(), "spec.engine.kvTransfer", {"blockTokens": {"prefill": 64, "decode": 16}}, _BLOCKS
    ),
    _case(
        "vllm-reads-back-larger-blocks",
        vllm_service(),
        "spec.engine.kvTransfer",
        {"blockTokens": {"prefill": 16, "decode": 64}},
        "spec.engine.kvTransfer.blockTokens: prefill workers read history back only from blocks no larger than their "
        "own; make both the same, or set bidirectional to false",
    ),
    _case(
        "mock-proofs",
        service(),
        "spec.engine.kvTransfer",
        {"proofSeconds": 10},
        "spec.engine.kvTransfer.proofSeconds: only vllm's KV paths are proven; remove it",
    ),
    _case(
        "mock-blocks",
        service(),
        "spec.engine.kvTransfer",
        {"blockTokens": {"prefill": 16, "decode": 16}},
        "spec.engine.kvTransfer.blockTokens: the engines mock and neuron have no blocks to choose; remove it",
    ),
    _case(
        "sglang-fp8",
        sglang_service(),
        "spec.model.kvCacheDtype",
        "fp8",
        "spec.model.kvCacheDtype: sglang has two formats of fp8; choose fp8_e4m3 or fp8_e5m2",
    ),
    _case(
        "tensorrt-fp8-format",
        tensorrt_llm_service(),
        "spec.model.kvCacheDtype",
        "fp8_e4m3",
        "spec.model.kvCacheDtype: tensorrt-llm takes auto or fp8; choose one of them",
    ),
    _case(
        "sglang-colocated",
        sglang_service(),
        "spec.planning.layouts",
        ["colocated", "disaggregated"],
        _NO_LOCAL_LAYOUT,
    ),
    _case("sglang-hybrid", sglang_service(), "spec.planning.layouts", ["disaggregated", "hybrid"], _FIXED_ROLES),
    _case(
        "tensorrt-symmetric",
        tensorrt_llm_service(),
        "spec.planning.layouts",
        ["colocated", "symmetric"],
        _FIXED_ROLES,
    ),
    _case(
        "sglang-always-local",
        sglang_service(),
        "spec.routing.policy",
        "always-local",
        _NO_LOCAL_POLICY,
    ),
    _case(
        "sglang-without-network-policy",
        sglang_service(),
        "spec.networkPolicy.enabled",
        False,
        "spec.networkPolicy.enabled: sglang's prefill API listens where its bootstrap server does, on all interfaces, "
        "and only the network policy keeps strangers off it; leave it on",
    ),
    _case(
        "claims-without-a-degree",
        changed(service(), "spec.capacity.elastic", True),
        "spec.capacity.pools.0",
        {
            **service()["spec"]["capacity"]["pools"][0],
            "gpusFromClaims": True,
            "resourceClaims": [{"name": "gpus", "template": "four", "degrees": [1, 2, 4]}],
        },
        "spec.capacity.pools.gpusFromClaims: every degree needs a claim with that many GPUs; add one to resourceClaims "
        "that names the degree",
    ),
    _case(
        "claims-that-cannot-be-counted",
        service(),
        "spec.capacity.pools.0",
        {
            **service()["spec"]["capacity"]["pools"][0],
            "gpusFromClaims": True,
            "resourceClaims": [{"name": "gpus", "template": "any"}],
        },
        "spec.capacity.elastic: must be true where pools.gpusFromClaims is, because free GPUs are counted by extended "
        "resource; set it",
    ),
    _case(
        "patch-for-no-pool",
        service(),
        "spec.podTemplates",
        [{"pool": "h100", "patch": {"spec": {}}}],
        "spec.podTemplates.pool: is none of spec.capacity.pools; correct the name",
    ),
    _case(
        "patch-for-a-coordinator-in-a-pool",
        service(),
        "spec.podTemplates",
        [{"component": "coordinator", "pool": "h20", "patch": {"spec": {}}}],
        "spec.podTemplates.pool: coordinators run in no pool; remove pool, or choose component prefill or decode",
    ),
    _case("peer-of-nothing", service(), "spec.networkPolicy.workersFrom", [{}], _PEER),
    _case(
        "peer-of-both",
        service(),
        "spec.networkPolicy.clientsFrom",
        [{"podSelector": {"matchLabels": {"app": "web"}}, "ipBlock": {"cidr": "10.0.0.0/8"}}],
        _PEER,
    ),
)
