"""Speculative decoding: flags and files of each engine and role, pod revisions, measurements and planning."""

import json
from typing import Any

import pytest

from weft_core.parallelism import degree_of
from weft_core.plan import Role
from weft_operator.api.objects import Manifest
from weft_operator.api.planning import MeasureProfile
from weft_operator.planning.request import planner_request
from weft_operator.profiling.jobs import profile_job
from weft_operator.profiling.targets import MeasurementTarget, identity
from weft_operator.render.engines.adapters import engine_container, engine_files
from weft_operator.render.engines.container import EngineRequest
from weft_operator.render.objects import mounts_of
from weft_operator_tests.samples import TOKEN, rendering
from weft_operator_tests.test_render_golden import pinned
from weft_operator_tests.valid import changed, service, sglang_service, spec, tensorrt_llm_service, vllm_service
from weft_planner.request.reading import request_of

BODIES = {"mock": service(), "vllm": vllm_service(), "sglang": sglang_service(), "tensorrt-llm": tensorrt_llm_service()}
DRAFT = "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"
METHODS: dict[str, Manifest] = {
    "mtp": {"method": "mtp", "tokens": 1},
    "eagle": {"method": "eagle", "tokens": 3, "model": DRAFT},
    "ngram": {"method": "ngram", "tokens": 4, "acceptance": 0.4},
}
ROLES: tuple[Role, ...] = ("prefill", "decode")


def drafting(kind: str, method: str, **more: Any) -> Manifest:
    return changed(BODIES[kind], "spec.engine.speculative", {**METHODS[method], **more})


def args(body: Manifest, role: Role, *, paired: bool = True) -> list[str]:
    request = EngineRequest(role=role, degree=4, default_image="mock:1", paired=paired)
    return list(engine_container(spec(body), request).args)


def added(kind: str, method: str, role: Role) -> list[str]:
    """Return the arguments that an engine without it does not have."""
    plain = args(BODIES[kind], role)
    return [arg for arg in args(drafting(kind, method), role) if arg not in plain]


@pytest.mark.parametrize("kind", ["sglang", "tensorrt-llm", "vllm"])
def test_engines_that_draft_are_those_of_the_golden_file(kind: str) -> None:
    found = []
    for method in METHODS:
        body = drafting(kind, method)
        files = {name: json.loads(text) for name, text in engine_files(spec(body), paired=True).items()}
        roles: Manifest = {role: added(kind, method, role) for role in ROLES}
        options = {name: item.get("speculative_config") for name, item in files.items()}
        found.append({"method": method, **roles, **({"files": options} if files else {})})
    pinned(f"speculative-{kind}", found)


@pytest.mark.parametrize("method", ["mtp", "eagle"])
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_both_roles_have_the_same_draft_model(kind: str, method: str) -> None:
    assert added(kind, method, "prefill") == added(kind, method, "decode") != []


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_prefill_workers_look_up_no_n_grams(kind: str) -> None:
    assert added(kind, "ngram", "prefill") == []
    assert added(kind, "ngram", "decode") != []


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_mock_engine_drafts_in_its_cost_profile_alone(method: str) -> None:
    assert added("mock", method, "prefill") == added("mock", method, "decode") == []


def test_co_located_workers_draft_as_decode_workers_do() -> None:
    flag = '--speculative-config={"method":"ngram","num_speculative_tokens":4}'
    assert flag in args(drafting("vllm", "ngram"), "decode", paired=False)
    (both,) = engine_files(spec(drafting("tensorrt-llm", "ngram")), paired=False).values()
    options = json.loads(both)
    assert options["speculative_config"]["decoding_type"] == "NGram"
    assert options["disable_overlap_scheduler"] is True


def test_tensorrt_llm_s_files_of_ranks_draft_too() -> None:
    body = changed(drafting("tensorrt-llm", "mtp"), "spec.capacity.pools.0.parallelism", [{"tp": 8}, {"dp": 8}])
    files = {name: json.loads(text) for name, text in engine_files(spec(body), paired=True).items()}
    assert {"trtllm-decode.json", "trtllm-decode-dp.json"} <= set(files)
    assert {item["speculative_config"]["max_draft_len"] for item in files.values()} == {1}
    request = EngineRequest(role="decode", degree=degree_of(dp=8), default_image="mock:1")
    assert any(arg.endswith("/trtllm-decode-dp.json") for arg in engine_container(spec(body), request).args)


def test_workers_with_another_draft_do_not_pair_and_another_acceptance_changes_none() -> None:
    plain = rendering(BODIES["vllm"]).revision
    one = rendering(drafting("vllm", "mtp")).revision
    assert plain != one
    assert rendering(drafting("vllm", "mtp", acceptance=0.5)).revision == one
    assert rendering(drafting("vllm", "mtp", tokens=2)).revision != one
    assert rendering(drafting("vllm", "eagle")).revision != one


def test_steps_are_measured_without_it() -> None:
    base = rendering(drafting("vllm", "eagle"))
    target = MeasurementTarget(gpu="nvidia-h20", degree=8, pool="h20")
    job = profile_job(base, mounts_of(base, token=TOKEN), target, MeasureProfile(), name="demo-profile-8-x", reader="")
    engine = next(item for item in job["spec"]["template"]["spec"]["initContainers"] if item["name"] == "engine")
    assert not [arg for arg in engine["args"] if "spec" in arg]
    plain = identity(spec(BODIES["vllm"]), "nvidia-h20")
    assert identity(spec(drafting("vllm", "eagle")), "nvidia-h20") == plain


def test_the_planner_is_asked_for_it() -> None:
    asked = request_of(planner_request(spec(drafting("vllm", "ngram")))).engine.speculative
    assert asked is not None
    assert (asked.method, asked.tokens, asked.acceptance) == ("ngram", 4, 0.4)
    assert "speculative" not in planner_request(spec(BODIES["vllm"]))["engine"]
