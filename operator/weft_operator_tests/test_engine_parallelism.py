"""Engine flags, ports and files of tensor, pipeline, data and expert parallelism, on one node and on several.

Golden files pin whole commands; their images name the versions that these are for.
"""

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
from weft_operator.render.engines.adapters import engine_container, kv_ports
from weft_operator.render.engines.container import DATA_PORTS, EngineContainer, EngineRequest
from weft_operator.render.inputs import Rendering
from weft_operator.workers.fleet import Worker, parse_name
from weft_operator_tests.samples import colocated, group, rendered, rendering
from weft_operator_tests.test_render_golden import pinned
from weft_operator_tests.valid import changed, service, sglang_service, spec, tensorrt_llm_service, vllm_service

SPLITS: dict[Degree, dict[str, list[str]]] = {
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
    # Without --num_postprocess_workers, which Ray's executor refuses.
    "tensorrt-llm": changed(tensorrt_llm_service(), "spec.engine.args", []),
}
RANKS = (degree_of(dp=8, ep=True), degree_of(dp=16, ep=True))
STAGES = degree_of(tp=4, pp=2)
SPLIT_FLAG = re.compile(r"--(tensor|pipeline|data|expert)-parallel|--enable-(expert|dp)|--(tp|pp|dp|ep)[-_]size")


def with_ranks(kind: str) -> Rendering:
    """Return a mixture of experts whose prefill ranks lie on one node and whose decode ranks lie on two."""
    body = changed(BODIES[kind], "spec.model", {"name": "deepseek-ai/DeepSeek-R1", "maxModelLen": 32768})
    body["spec"]["engine"] |= {"maxNumSeqs": 64, "maxNumBatchedTokens": 4096}
    if kind == "tensorrt-llm":
        body = changed(body, "spec.engine.kvTransfer.connector", "ucx")
    body = changed(body, "spec.capacity.gpus", 32)
    pool = body["spec"]["capacity"]["pools"][0]
    del pool["degrees"]
    pool["parallelism"] = [{"dp": 8, "ep": True}, {"dp": 16, "ep": True}]
    return rendering(body, group("prefill", RANKS[0], 1), group("decode", RANKS[1], 1))


def with_stages(kind: str) -> Rendering:
    """Return prefill workers with both stages on one node and decode workers with one on each of two.

    vLLM's workers with stages exchange no KV: there both are co-located.
    """
    body = changed(BODIES[kind], "spec.capacity.gpus", 32)
    (pool,) = body["spec"]["capacity"]["pools"]
    del pool["degrees"]
    pool["parallelism"] = [{"tp": 4, "pp": 2}]
    small = {**pool, "name": "h100", "gpuType": "nvidia-h100", "gpusPerNode": 4, "gpus": 16}
    body["spec"]["capacity"]["pools"] = [pool, small]
    if kind != "vllm":
        return rendering(body, group("prefill", STAGES, 1), group("decode", STAGES, 1, "h100"))
    return colocated(body, group("decode", STAGES, 1), group("decode", STAGES, 1, "h100"))


def parallel_parts(base: Rendering) -> list[Manifest]:
    """Return the engine containers of all workers, the ports that their roles open, and the options files in use."""
    found: list[Manifest] = []
    objects = rendered(base)
    used: set[str] = set()
    for item in objects:
        name = item["metadata"]["name"]
        if item["kind"] == "NetworkPolicy" and name in ("demo-prefill", "demo-decode", "demo-worker"):
            found.append({"policy": name, "ports": [rule["ports"] for rule in item["spec"]["ingress"]]})
        if item["kind"] == "StatefulSet":
            engine = item["spec"]["template"]["spec"]["containers"][0]
            parts = ("image", "command", "args", "env", "ports", "resources")
            worker = {"worker": name, "nodes": item["spec"]["replicas"]}
            found.append(worker | {part: engine[part] for part in parts if part in engine})
            used |= {arg.rpartition("/")[2] for arg in engine["args"] if "/trtllm-" in arg}
    files = {name: text for item in objects for name, text in item.get("data", {}).items() if name in used}
    return [*found, *({"file": name, "options": json.loads(text)} for name, text in sorted(files.items()))]


@pytest.mark.parametrize("kind", sorted(BODIES))
def test_ranks_with_experts_are_those_of_the_golden_file(kind: str) -> None:
    pinned(f"{kind}-ranks", parallel_parts(with_ranks(kind)))


@pytest.mark.parametrize("kind", sorted(BODIES))
def test_stages_are_those_of_the_golden_file(kind: str) -> None:
    pinned(f"{kind}-stages", parallel_parts(with_stages(kind)))


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


def started(container: EngineContainer, program: str, folder: Path, *, node: int, address: str) -> list[str]:
    """Return the arguments that a pod of a worker on several nodes ends up with."""
    (folder / "bin").mkdir()
    echo = folder / "bin" / program
    echo.write_text('#!/bin/sh\ncase $1 in -c) exec "$PYTHON" "$@";; esac; echo "$@"\n')
    echo.chmod(0o755)
    path = os.pathsep.join([str(echo.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {"PATH": path, "PYTHON": sys.executable, "POD_IP": address, "WEFT_NODE_RANK": str(node)}
    return subprocess.run(
        [*container.command, *container.args],
        env=env | {"WEFT_LEADER": "localhost"},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    ).stdout.split()


@pytest.mark.parametrize(
    ("node", "address", "leader"),
    [(0, "10.0.0.7", r"10\.0\.0\.7"), (0, "fd00::7", r"\[fd00::7\]"), (1, "10.0.0.8", r"127\.0\.0\.1|\[::1\]")],
)
def test_sglang_is_given_the_leader_s_address(node: int, address: str, leader: str, tmp_path: Path) -> None:
    """ZeroMQ binds to the host of --dist-init-addr where there are ranks."""
    request = EngineRequest(role="decode", degree=degree_of(dp=16, ep=True), default_image="mock", nodes=2)
    container = engine_container(spec(sglang_service()), request)
    said = started(container, "python3", tmp_path, node=node, address=address)
    assert said[:2] == ["-m", "sglang.launch_server"]
    (given,) = [arg.partition("=")[2] for arg in said if arg.startswith("--dist-init-addr=")]
    assert re.fullmatch(f"({leader}):29500", given)


@pytest.mark.parametrize("node", [0, 1])
def test_ranks_on_several_nodes_are_started_on_each_and_find_the_first(node: int, tmp_path: Path) -> None:
    request = EngineRequest(role="decode", degree=degree_of(dp=16, ep=True), default_image="mock", nodes=2)
    container = engine_container(spec(vllm_service()), request)
    said = started(container, "vllm", tmp_path, node=node, address="10.0.0.7")
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


def test_workers_of_ranks_are_named_and_labelled() -> None:
    degree = degree_of(dp=16, ep=True)
    body = changed(vllm_service(), "spec.capacity.pools.0.parallelism", [{"tp": 8}, {"dp": 16, "ep": True}])
    base = rendering(body, group("prefill", 8, 1), group("decode", degree, 1))
    sets = [item for item in rendered(base) if item["kind"] == "StatefulSet"]
    ranks = next(item for item in sets if item["metadata"]["labels"]["weft.dev/degree"] == "dp16ep")
    name = ranks["metadata"]["name"]
    assert name.endswith("-w-dp16ep-0")
    assert parse_name(base.key.name, name, "h20") == Worker("decode", degree, 0, "h20", fixed=False)
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
