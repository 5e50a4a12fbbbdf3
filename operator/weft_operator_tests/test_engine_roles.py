"""Engine settings for one role: rendered objects, pod restarts, network policy, profiling and planning."""

import json
from typing import Any

import pytest

from weft_core.plan import Role
from weft_operator.api.objects import Manifest
from weft_operator.api.planning import MeasureProfile
from weft_operator.api.quantities import resources_fault
from weft_operator.planning.request import planner_request
from weft_operator.profiling.jobs import profile_job
from weft_operator.profiling.targets import MeasurementTarget, identity
from weft_operator.render.engines.adapters import engine_container, engine_files
from weft_operator.render.engines.container import EngineRequest
from weft_operator.render.inputs import Rendering
from weft_operator.render.objects import desired_objects, mounts_of
from weft_operator_tests.samples import TOKEN, colocated, rendering
from weft_operator_tests.test_render_golden import pinned
from weft_operator_tests.valid import (
    changed,
    neuron_service,
    service,
    sglang_service,
    spec,
    tensorrt_llm_service,
    vllm_service,
)
from weft_planner.request.reading import request_of

PREFILL = {"maxNumSeqs": 16, "maxNumBatchedTokens": 16384}
DECODE = {
    "image": "registry.example.com/team/engine:decode",
    "args": ["--seed=7"],
    "env": [{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "TMPDIR", "value": "$(HF_HOME)/tmp"}],
    "resources": {"requests": {"cpu": 4}},
    "memoryFraction": 0.85,
    "maxNumSeqs": 512,
    "maxNumBatchedTokens": 2048,
}
BODIES = {
    "mock": service(),
    "vllm": vllm_service(),
    "sglang": sglang_service(),
    "tensorrt-llm": tensorrt_llm_service(),
    "neuron": neuron_service(),
}
NO_TOKENS = {"maxNumBatchedTokens": None}
"""Neuron computes each prompt as a whole."""


def with_roles(body: Manifest, **roles: object) -> Manifest:
    for role, settings in roles.items():
        body = changed(body, f"spec.engine.{role}", settings)
    return body


ROLES = {
    name: with_roles(body, prefill=PREFILL | missing, decode=DECODE | missing)
    for name, body in BODIES.items()
    for missing in (NO_TOKENS if name == "neuron" else {},)
}


def args(body: Manifest, role: Role) -> list[str]:
    return list(engine_container(spec(body), EngineRequest(role=role, degree=4, default_image="mock:1")).args)


def templates(base: Rendering) -> dict[str, Manifest]:
    """Return the pod template of each role's workers."""
    groups = [item for item in desired_objects(base, token=TOKEN) if item["kind"] == "WorkerGroup"]
    return {item["spec"].get("role", "worker"): item["spec"]["template"] for item in groups}


def engine_of(template: Manifest) -> Manifest:
    found: Manifest = template["spec"]["containers"][0]
    return found


@pytest.mark.parametrize("engine", sorted(ROLES))
def test_engines_of_both_roles_are_those_of_the_golden_file(engine: str) -> None:
    parts = ("image", "args", "env", "resources")
    found = templates(rendering(ROLES[engine]))
    containers = [(role, engine_of(found[role])) for role in sorted(found)]
    pinned(f"roles-{engine}", [{"role": role} | {part: item[part] for part in parts} for role, item in containers])


FLAGS: dict[str, dict[str, set[str]]] = {
    "vllm": {
        "prefill": {"--gpu-memory-utilization=0.9", "--max-num-seqs=16", "--max-num-batched-tokens=16384"},
        "decode": {"--gpu-memory-utilization=0.85", "--max-num-seqs=512", "--max-num-batched-tokens=2048"},
    },
    "sglang": {
        "prefill": {"--mem-fraction-static=0.9", "--max-running-requests=16", "--chunked-prefill-size=16384"},
        "decode": {"--mem-fraction-static=0.85", "--max-running-requests=512", "--chunked-prefill-size=2048"},
    },
    "tensorrt-llm": {
        "prefill": {"--max_batch_size=16", "--max_num_tokens=16384"},
        "decode": {"--max_batch_size=512", "--max_num_tokens=2048"},
    },
    "neuron": {"prefill": {"--max-num-seqs=16"}, "decode": {"--max-num-seqs=512"}},
    "mock": {"prefill": {"--max-num-seqs=16", "--chunk=16384"}, "decode": {"--max-num-seqs=512", "--chunk=2048"}},
}


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("engine", sorted(FLAGS))
def test_each_role_has_the_flags_of_its_sizes(engine: str, role: Role) -> None:
    found = args(ROLES[engine], role)
    assert set(found) >= FLAGS[engine][role]
    names = [arg.partition("=")[0] for arg in found if arg.startswith("--")]
    assert len(set(names)) == len(names)
    assert ("--seed=7" in found) is (role == "decode")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_weights_are_quantised_as_the_engine_names_it(engine: str) -> None:
    body = changed(BODIES[engine], "spec.engine.quantization", "fp8")
    assert "--quantization=fp8" in args(body, "prefill")
    body = with_roles(body, decode={"quantization": "awq_marlin"})
    assert "--quantization=awq_marlin" in args(body, "decode")
    assert not [arg for arg in args(BODIES[engine], "decode") if arg.startswith("--quantization")]


def test_the_mock_engine_ignores_memory_and_quantization() -> None:
    body = with_roles(service(), decode={"memoryFraction": 0.5, "quantization": "fp8"})
    assert args(body, "decode") == args(service(), "decode")


def test_tensorrt_llm_has_each_role_s_memory_in_its_file() -> None:
    files = engine_files(spec(ROLES["tensorrt-llm"]), paired=True)
    options = {name: json.loads(text) for name, text in files.items()}
    fractions = {name: item["kv_cache_config"]["free_gpu_memory_fraction"] for name, item in options.items()}
    assert fractions == {"trtllm-prefill.json": 0.9, "trtllm-decode.json": 0.85}
    (both,) = engine_files(spec(ROLES["tensorrt-llm"]), paired=False).values()
    assert '"free_gpu_memory_fraction":0.85' in both, "co-located workers are decode workers"


def test_tensorrt_llm_answers_by_the_served_name_where_weights_are_in_a_folder() -> None:
    name = "--served_model_name=meta-llama/Llama-3.1-70B-Instruct"
    folder = changed(tensorrt_llm_service(), "spec.model.source", {"pvc": {"claimName": "models", "path": "llama"}})
    assert name in args(folder, "prefill")
    assert name not in args(tensorrt_llm_service(), "prefill"), "from the hub it has that name anyhow"


def test_co_located_workers_have_the_settings_of_decode() -> None:
    engine = engine_of(templates(colocated(ROLES["vllm"]))["decode"])
    assert engine["image"] == DECODE["image"]
    assert "--max-num-seqs=512" in engine["args"]


def test_a_variable_of_the_author_s_stands_after_what_it_refers_to() -> None:
    env = [{"name": "ROOT", "value": "/models"}, {"name": "HOME", "value": "$(ROOT)/home"}]
    own = {"env": [{"name": "ROOT", "value": "/d"}]}
    body = with_roles(changed(vllm_service(), "spec.engine.env", env), decode=own)
    for role, root in (("prefill", "/models"), ("decode", "/d")):
        found = engine_of(templates(rendering(body))[role])["env"]
        names = [item["name"] for item in found]
        assert len(set(names)) == len(names)
        assert found[-2:] == [{"name": "ROOT", "value": root}, env[1]]


SETTINGS: tuple[Any, ...] = (
    {"args": ["--seed=7"]},
    {"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]},
    {"image": "registry.example.com/team/engine:decode"},
    {"resources": {"requests": {"cpu": 4}}},
    {"memoryFraction": 0.5},
    {"maxNumSeqs": 512},
    {"quantization": "fp8"},
)


@pytest.mark.parametrize("settings", SETTINGS, ids=[next(iter(item)) for item in SETTINGS])
def test_a_role_s_settings_restart_no_worker_of_the_other(settings: Manifest) -> None:
    fixed = with_roles(vllm_service(), prefill={"env": [{"name": "ONLY", "value": "prefill"}]})
    plain, changed_ = rendering(fixed), rendering(with_roles(fixed, decode=settings))
    assert changed_.revision == plain.revision, "its workers pair with those there are"
    before, after = templates(plain), templates(changed_)
    assert after["prefill"] == before["prefill"]
    assert after["decode"] != before["decode"]


def test_tensorrt_llm_s_files_are_in_one_config_map_so_memory_restarts_both_roles() -> None:
    plain, less = (
        templates(rendering(body))
        for body in (tensorrt_llm_service(), with_roles(tensorrt_llm_service(), decode={"memoryFraction": 0.5}))
    )
    assert less["prefill"] != plain["prefill"]


def test_a_changed_quantization_of_both_roles_is_another_revision() -> None:
    quantised = rendering(changed(vllm_service(), "spec.engine.quantization", "fp8"))
    assert quantised.revision != rendering(vllm_service()).revision


def test_a_proxy_of_one_role_may_be_reached() -> None:
    proxy = {"env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]}
    policies = [
        item
        for item in desired_objects(rendering(with_roles(vllm_service(), prefill=proxy)), token=TOKEN)
        if item["kind"] == "NetworkPolicy" and "3128" in str(item["spec"].get("egress"))
    ]
    assert policies


def test_figures_are_measured_with_what_both_roles_share() -> None:
    base = rendering(ROLES["vllm"])
    target = MeasurementTarget(gpu="nvidia-h20", degree=8, pool="h20")
    job = profile_job(base, mounts_of(base, token=TOKEN), target, MeasureProfile(), name="demo-profile-8-x", reader="")
    engine = next(item for item in job["spec"]["template"]["spec"]["initContainers"] if item["name"] == "engine")
    assert "--gpu-memory-utilization=0.85" in engine["args"], "the smaller one: figures are of both roles"
    assert not [arg for arg in engine["args"] if arg.startswith(("--max-num-seqs", "--seed"))]
    plain = identity(spec(vllm_service()), "nvidia-h20")
    assert identity(spec(with_roles(vllm_service(), decode={"maxNumSeqs": 8})), "nvidia-h20") == plain
    for field, value in (("memoryFraction", 0.5), ("maxNumSeqs", 8), ("quantization", "fp8")):
        assert identity(spec(changed(vllm_service(), f"spec.engine.{field}", value)), "nvidia-h20") != plain


def test_the_planner_uses_the_smaller_memory_fraction_and_quantization_only_if_both_roles_have_it() -> None:
    def planned(**roles: Any) -> Any:
        return request_of(planner_request(spec(with_roles(vllm_service(), **roles))))

    assert planned(prefill={"memoryFraction": 0.95}).analytic.memory_fraction == 0.9
    assert planned(prefill={"memoryFraction": 0.95}, decode={"memoryFraction": 0.92}).analytic.memory_fraction == 0.92
    fp8 = {"quantization": "fp8"}
    assert planned(prefill=fp8).model.dtype == "bfloat16"
    assert planned(prefill=fp8, decode=fp8).model.dtype == "fp8"


def test_a_role_s_request_above_its_limit_is_refused_with_its_field() -> None:
    resources = {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}}
    fault = resources_fault(spec(with_roles(vllm_service(), decode=resources)))
    assert fault is not None
    assert fault.startswith("spec.engine.decode.resources.requests.memory: is above limits.memory (2Gi and 1Gi)")
