"""Engine flags, ports and files of tensor, pipeline, data and expert parallelism, on one node and on several."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from weft_core.models import MODELS
from weft_core.parallelism import Degree, degree_of, parse_degree
from weft_operator.api.objects import Manifest
from weft_operator.render.engines.adapters import engine_container, engine_files, kv_ports
from weft_operator.render.engines.container import DATA_PORTS, EngineRequest
from weft_operator.workers.fleet import Worker, parse_name
from weft_operator_tests.samples import group, rendered, rendering
from weft_operator_tests.valid import changed, service, sglang_service, spec, tensorrt_llm_service, vllm_service

SPLITS: dict[Degree, dict[str, list[str]]] = {
    degree_of(tp=4, pp=2): {
        "vllm": ["--tensor-parallel-size=4", "--pipeline-parallel-size=2"],
        "sglang": ["--tp-size=4", "--pp-size=2"],
        "tensorrt-llm": ["--tp_size=4", "--pp_size=2"],
    },
    degree_of(dp=8, ep=True): {
        "vllm": ["--tensor-parallel-size=1", "--data-parallel-size=8", "--enable-expert-parallel"],
        "sglang": ["--tp-size=8", "--dp-size=8", "--enable-dp-attention", "--ep-size=8"],
        "tensorrt-llm": ["--tp_size=8", "--ep_size=8"],
    },
    degree_of(tp=2, dp=4): {
        "vllm": ["--tensor-parallel-size=2", "--data-parallel-size=4"],
        "sglang": ["--tp-size=8", "--dp-size=4", "--enable-dp-attention"],
        "tensorrt-llm": ["--tp_size=8"],
    },
    degree_of(tp=8, ep=True): {
        "vllm": ["--tensor-parallel-size=8", "--enable-expert-parallel"],
        "sglang": ["--tp-size=8", "--ep-size=8"],
        "tensorrt-llm": ["--tp_size=8", "--ep_size=8"],
    },
}
BODIES: dict[str, Manifest] = {
    "vllm": vllm_service(),
    "sglang": sglang_service(),
    "tensorrt-llm": tensorrt_llm_service(),
}
SPLIT_FLAG = re.compile(r"--(tensor|pipeline|data|expert)-parallel|--enable-(expert|dp)|--(tp|pp|dp|ep)[-_]size")


@pytest.mark.parametrize("kind", sorted(BODIES))
@pytest.mark.parametrize("degree", list(SPLITS), ids=str)
def test_engine_flags_match_the_parallelism(degree: Degree, kind: str) -> None:
    request = EngineRequest(role="decode", degree=degree, default_image="mock")
    args = engine_container(spec(BODIES[kind]), request).args
    assert [arg for arg in args if SPLIT_FLAG.match(arg)] == SPLITS[degree][kind]


def test_mock_engines_know_how_much_their_ranks_do_together() -> None:
    body = changed(service(), "spec.model", {"name": "deepseek-ai/DeepSeek-R1", "maxModelLen": 8192})

    def shared(body: Manifest, degree: Degree) -> list[str]:
        args = engine_container(spec(body), EngineRequest(role="decode", degree=degree, default_image="mock")).args
        return [arg for arg in args if arg.startswith("--shared-work")]

    share = MODELS["deepseek-ai/DeepSeek-R1"].expert_share
    assert 0.5 < share < 1
    assert shared(body, degree_of(dp=8, ep=True)) == [f"--shared-work={share:.3g}"]
    assert shared(body, 8) == []
    assert shared(changed(body, "spec.model.name", "own/model"), degree_of(dp=8, ep=True)) == []


@pytest.mark.parametrize("tag", [":v0.5.10", ":0.5.12.post1-cu129", ":v0.6.0", ":latest", "@sha256:0059", ""])
def test_images_of_sglang_that_may_take_ranks_are_accepted(tag: str) -> None:
    body = changed(sglang_service(), "spec.capacity.pools.0.parallelism", [{"tp": 8}, {"dp": 8, "ep": True}])
    spec(changed(body, "spec.engine.image", f"registry-0.5.9.example.com:5000/v0.5.9/sglang{tag}"))


def test_only_decode_workers_are_given_ranks() -> None:
    """An old image may have ranks where it prefills, and none where it does not."""
    body = changed(sglang_service(), "spec.engine.prefill", {"image": "sglang:v0.5.9"})
    spec(changed(body, "spec.capacity.pools.0.parallelism", [{"tp": 8}, {"dp": 8, "ep": True}]))
    old = changed(sglang_service(), "spec.engine.image", "sglang:v0.5.9")
    spec(changed(old, "spec.capacity.pools.0.parallelism", [{"tp": 8}, {"tp": 8, "pp": 2}]))


def test_the_largest_worker_has_a_pod_on_each_of_its_nodes() -> None:
    pool = vllm_service()["spec"]["capacity"]["pools"][0]
    ranks = {**pool, "gpusPerNode": 4, "parallelism": [{"tp": 4}, {"dp": 256, "ep": True}]}
    body = changed(changed(vllm_service(), "spec.capacity.gpus", 512), "spec.capacity.pools.0", ranks)
    base = rendering(body, group("prefill", 4, 1), group("decode", degree_of(dp=256, ep=True), 1))
    nodes = [item["spec"]["replicas"] for item in rendered(base) if item["kind"] == "StatefulSet"]
    assert sorted(nodes) == [1, 64]


@pytest.mark.parametrize("node", [0, 1])
def test_ranks_on_several_nodes_are_started_on_each_and_find_the_first(node: int, tmp_path: Path) -> None:
    request = EngineRequest(role="decode", degree=degree_of(dp=16, ep=True), default_image="mock", nodes=2)
    container = engine_container(spec(vllm_service()), request)
    assert {"--data-parallel-size=16", "--data-parallel-size-local=8"} <= set(container.args)
    assert not any(arg.startswith(("--nnodes", "--node-rank")) for arg in container.args)
    vllm = tmp_path / "vllm"
    vllm.write_text('#!/bin/sh\necho "$@"\n')
    vllm.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {"PATH": path, "POD_IP": "10.0.0.7", "WEFT_NODE_RANK": str(node), "WEFT_LEADER": "localhost"}
    said = subprocess.run(
        [*container.command, *container.args], env=env, capture_output=True, text=True, timeout=20, check=True
    ).stdout.split()
    assert said[:2] == ["serve", container.args[0]]
    (address,) = [arg.partition("=")[2] for arg in said if arg.startswith("--data-parallel-address=")]
    if node == 0:
        assert address == "10.0.0.7", "its own, to which it binds"
        assert "--headless" not in said
    else:
        assert address in ("127.0.0.1", "::1"), "the leader's, looked up"
        assert {"--headless", "--data-parallel-start-rank=8"} <= set(said)


def test_the_side_channels_of_all_ranks_may_be_reached() -> None:
    body = changed(vllm_service(), "spec.capacity.pools.0.parallelism", [{"tp": 8}, {"dp": 8, "ep": True}])
    assert kv_ports(spec(body), "decode").spans == ((5600, 5607), DATA_PORTS)
    assert kv_ports(spec(vllm_service()), "decode").single == (5600,)
    free = changed(vllm_service(), "spec.capacity.pools.0.degrees", None)
    assert kv_ports(spec(free), "decode").single == (5600,)  # a dense model has no ranks
    mixture = changed(free, "spec.model.name", "deepseek-ai/DeepSeek-R1")
    assert kv_ports(spec(mixture), "decode").spans == ((5600, 5663), DATA_PORTS)


def test_attention_of_ranks_is_an_option_of_tensorrt_llm() -> None:
    body = changed(tensorrt_llm_service(), "spec.capacity.pools.0.parallelism", [{"tp": 8}, {"dp": 8, "ep": True}])
    files = engine_files(spec(body), paired=True)
    decode, prefill = (json.loads(files[f"trtllm-{role}-dp.json"]) for role in ("decode", "prefill"))
    assert decode["enable_attention_dp"] is prefill["enable_attention_dp"] is True
    assert decode["attention_dp_config"] == {"kv_cache_routing_conversation_affinity": True}
    assert "attention_dp_config" not in prefill, "the router names no session there"
    assert "enable_attention_dp" not in json.loads(files["trtllm-decode.json"])
    request = EngineRequest(role="decode", degree=degree_of(dp=8, ep=True), default_image="mock")
    assert any(arg.endswith("/trtllm-decode-dp.json") for arg in engine_container(spec(body), request).args)


def test_workers_of_ranks_are_named_labelled_and_given_their_gpus() -> None:
    degree = degree_of(dp=16, ep=True)
    body = changed(vllm_service(), "spec.capacity.pools.0.parallelism", [{"tp": 8}, {"dp": 16, "ep": True}])
    base = rendering(body, group("prefill", 8, 1), group("decode", degree, 1))
    sets = [item for item in rendered(base) if item["kind"] == "StatefulSet"]
    ranks = next(item for item in sets if item["metadata"]["labels"]["weft.dev/degree"] == "dp16ep")
    name = ranks["metadata"]["name"]
    assert name.endswith("-w-dp16ep-0")
    assert parse_name(base.key.name, name, "h20") == Worker("decode", degree, 0, "h20", fixed=False)
    assert ranks["spec"]["replicas"] == 2
    engine = ranks["spec"]["template"]["spec"]["containers"][0]
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == "8"
    env = {item["name"]: item.get("value") for item in ranks["spec"]["template"]["spec"]["initContainers"][-1]["env"]}
    assert env["WEFT_DEGREE"] == "dp16ep"


@pytest.mark.parametrize("name", ["demo-p8-0", "demo-d-tp4pp2-3", "demo-p-dp16ep-1", "demo-d-ep-0"])
def test_a_worker_s_name_is_read_back(name: str) -> None:
    worker = parse_name("demo", name, "h20")
    assert worker is not None
    assert worker.name("demo") == name


@pytest.mark.parametrize(
    "name", ["demo-d--0", "demo-d-p8-0", "demo-dtp4-0", "demo-d-pp2tp4-0", "demo-x8-0", "demo-d-dp-0"]
)
def test_a_name_of_another_kind_is_no_worker_s(name: str) -> None:
    assert parse_name("demo", name, "h20") is None


def test_degrees_of_both_forms_are_one_in_names() -> None:
    assert parse_degree("tp8") == 8
