"""Neuron's engine: how it is started, how its workers find each other, and what its pools are counted in."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from weft_core.kv_head_ranks import kv_heads_of_ranks
from weft_core.models import MODELS
from weft_operator.api.objects import Manifest, ServiceKey
from weft_operator.planning.request import planner_request
from weft_operator.render.engines.adapters import engine_container, engine_files, kv_ports
from weft_operator.render.engines.container import EngineContainer, EngineRequest
from weft_operator.workers.node_capacity import capacity_of
from weft_operator_tests.samples import group, rendered, rendering
from weft_operator_tests.valid import changed, neuron_service, spec
from weft_planner.request.reading import request_of
from weft_router.engines.adapter import endpoint_of

LLAMA = MODELS["meta-llama/Llama-3.1-70B-Instruct"]
UNKNOWN = changed(neuron_service(), "spec.model.name", "acme/llama")


def container(role: Any = "prefill", body: Manifest | None = None, degree: int = 16) -> EngineContainer:
    request = EngineRequest(role=role, degree=degree, default_image="")
    return engine_container(spec(body or neuron_service()), request)


def json_of(found: EngineContainer, flag: str) -> dict[str, Any]:
    (text,) = [arg.removeprefix(f"--{flag}=") for arg in found.args if arg.startswith(f"--{flag}=")]
    value: dict[str, Any] = json.loads(text)
    return value


@pytest.mark.parametrize(("role", "kv_role"), [("prefill", "kv_producer"), ("decode", "kv_consumer")])
def test_each_role_has_its_part_in_the_transfer(role: str, kv_role: str) -> None:
    found = container(role)
    transfer = json_of(found, "kv-transfer-config")
    assert (transfer["kv_connector"], transfer["kv_role"]) == ("NeuronConnector", kv_role)
    assert {"--device=neuron", "--tensor-parallel-size=16", "--max-num-seqs=8", "--max-model-len=8192"} <= {*found.args}
    env = dict(found.env)
    assert env["NEURON_RT_ASYNC_SENDRECV_EXPERIMENTAL_ENABLED"] == "1"
    assert env["VLLM_USE_V1"] == "0"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_one_worker_of_each_role_connects_as_any_number_does(role: str) -> None:
    """The fork's static mode (kv_rank, kv_ip, the addresses of both in variables) would tie their restarts together."""
    body = changed(neuron_service(), "spec.planning", {"prefill": {"max": 1}, "decode": {"max": 1}})
    alone, many = container(role, body), container(role)
    assert alone == many
    assert json_of(alone, "kv-transfer-config").keys().isdisjoint({"kv_rank", "kv_parallel_size", "kv_ip"})
    assert dict(alone.env).keys().isdisjoint({"NEURON_SEND_IP", "NEURON_RECV_IP"})


def test_decode_workers_connect_to_the_port_after_the_one_that_routers_name() -> None:
    """The connector adds 1 to the port in a request's id, and prefill workers listen at the API's port plus 1."""
    (api,) = [int(arg.partition("=")[2]) for arg in container().args if arg.startswith("--port=")]
    named = endpoint_of("http://10.0.0.7:8080", engine_port=api, bootstrap_port=0).address
    assert named == f"10.0.0.7:{api}"
    assert container("prefill").ports == (("kv", api + 1),)
    assert kv_ports(spec(neuron_service()), "prefill").single == (api + 1,)
    assert kv_ports(spec(neuron_service()), "decode").single == ()


def test_it_is_compiled_for_the_lengths_and_entries_of_the_service_and_leaves_received_kv_alone() -> None:
    assert json_of(container("decode"), "override-neuron-config") == {
        "apply_seq_ids_mask": True,
        "context_encoding_buckets": [1024, 4096, 8192],
        "fused_qkv": True,
        "sequence_parallel_enabled": True,
        "token_generation_buckets": [2048, 8192],
    }
    plain = changed(neuron_service(), "spec.engine.neuron", {})
    assert json_of(container("decode", plain), "override-neuron-config") == {"apply_seq_ids_mask": True}


@pytest.mark.parametrize(
    ("neuron", "words"),
    [
        ({"contextBuckets": [4096, 1024, 8192]}, "must ascend"),
        ({"tokenBuckets": [8192, 8192]}, "must ascend"),
        ({"config": {"tp_degree": 4}}, "spec.engine.neuron.config"),
    ],
)
def test_settings_that_the_api_server_cannot_check_are_refused_by_the_operator(neuron: Manifest, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        spec(changed(neuron_service(), "spec.engine.neuron", neuron))


def test_the_engine_finds_the_module_in_place_of_the_etcd_client_and_keeps_a_path_of_the_image(tmp_path: Path) -> None:
    """The command is run as a pod would, with a program that says what it was given."""
    program = tmp_path / "python3"
    program.write_text('#!/bin/sh\necho "$PWD $PYTHONPATH $@"\n')
    program.chmod(0o755)
    found = container()
    env = {"PATH": f"{tmp_path}:/bin:/usr/bin", "PYTHONPATH": "/opt/site"}
    done = subprocess.run([*found.command, *found.args], env=env, capture_output=True, text=True, check=True)
    expected = f"/tmp /etc/weft:/opt/site -m vllm.entrypoints.openai.api_server {' '.join(found.args)}\n"
    assert done.stdout == expected


CONNECTOR = """
import etcd3, sys
host, port = sys.argv[1].split(":")
client = etcd3.client(host=host, port=port)
lease = client.lease(ttl=60)
lease.refresh()
client.put("/workers/prefill/10.0.0.7/8000", "{}", lease)
"""
"""What the connector's thread does with an etcd client."""


def test_the_connector_announces_its_worker_to_nobody(tmp_path: Path) -> None:
    (tmp_path / "etcd3.py").write_text(engine_files(spec(neuron_service()), paired=True)["etcd3.py"])
    etcd = json_of(container(), "kv-transfer-config")["etcd"]
    subprocess.run([sys.executable, "-S", "-c", CONNECTOR, etcd], env={"PYTHONPATH": str(tmp_path)}, check=True)


@pytest.mark.parametrize("degree", [1, 8, 32])
def test_engines_of_unlike_degrees_have_maps_of_the_models_kv_heads(degree: int) -> None:
    path = json_of(container(degree=degree), "kv-transfer-config")["kv_map_path"]
    files = engine_files(spec(neuron_service()), paired=True)
    found = json.loads(files[path.removeprefix("/etc/weft/")])
    ranks = kv_heads_of_ranks(LLAMA, degree)
    assert ranks is not None
    assert found == {"version": "0.1", "heads": {str(rank): list(heads) for rank, heads in enumerate(ranks)}}


def test_further_degrees_restart_no_worker() -> None:
    more = changed(neuron_service(), "spec.capacity.pools.0.degrees", [4, 16, 32, 64])
    assert engine_files(spec(more), paired=True) == engine_files(spec(neuron_service()), paired=True)


def test_a_model_whose_heads_are_not_known_has_one_degree() -> None:
    with pytest.raises(ValidationError, match=r"spec\.capacity\.pools\.degrees: engines of neuron with unlike degrees"):
        spec(UNKNOWN)
    alone = changed(UNKNOWN, "spec.capacity.pools.0.degrees", [16])
    assert "kv_map_path" not in json_of(container(body=alone), "kv-transfer-config")
    assert list(engine_files(spec(alone), paired=True)) == ["etcd3.py"]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    }
    assert "kv_map_path" in json_of(container(body=changed(UNKNOWN, "spec.model.config", config)), "kv-transfer-config")


@pytest.mark.parametrize(
    ("resource", "asked"),
    [("aws.amazon.com/neuroncore", "32"), ("aws.amazon.com/neuron", "8"), ("aws.amazon.com/neurondevice", "8")],
)
def test_workers_ask_for_cores_or_for_the_chips_that_have_them(resource: str, asked: str) -> None:
    body = changed(neuron_service(), "spec.capacity.pools.0.resource", resource)
    base = rendering(body, group("prefill", 16, 2, "trn2"), group("decode", 32, 1, "trn2"))
    (decode,) = [
        item
        for item in rendered(base)
        if item["kind"] == "StatefulSet" and item["metadata"]["labels"]["app.kubernetes.io/component"] == "decode"
    ]
    (engine,) = decode["spec"]["template"]["spec"]["containers"]
    assert engine["resources"]["limits"] == {resource: asked, "vpc.amazonaws.com/efa": "8"}


@pytest.mark.parametrize(("resource", "count"), [("aws.amazon.com/neuroncore", "64"), ("aws.amazon.com/neuron", "16")])
def test_nodes_are_counted_in_cores(resource: str, count: str) -> None:
    pools = spec(changed(neuron_service(), "spec.capacity.pools.0.resource", resource)).capacity.pools
    node = {"metadata": {"name": "trn2-a"}, "status": {"allocatable": {resource: count}}}
    pod = {
        "metadata": {"name": "other", "namespace": "other"},
        "spec": {
            "nodeName": "trn2-a",
            "containers": [{"resources": {"requests": {resource: str(int(count) // 4)}}}],
        },
    }
    found = capacity_of(pools, [node], [pod], service=ServiceKey("default", "demo"))
    assert (found.total, found.free) == (64, {"trn2": (48,)})


def test_settings_that_kv_depends_on_are_those_of_a_revision() -> None:
    plain = rendering(neuron_service())
    other = rendering(changed(neuron_service(), "spec.engine.neuron.config", {"k_cache_transposed": True}))
    assert other.revision != plain.revision


def test_the_planner_knows_how_many_sequences_have_a_place() -> None:
    assert request_of(planner_request(spec(neuron_service()))).engine.decode.max_num_seqs == 8
    decode = changed(neuron_service(), "spec.engine.decode", {"maxNumSeqs": 16})
    assert request_of(planner_request(spec(decode))).engine.decode.max_num_seqs == 16
