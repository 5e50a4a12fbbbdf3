"""What each engine is told, and that the API, the planner and the router know the same engines."""

import json
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from weft_operator.api.engine_flags import EngineType, is_managed
from weft_operator.api.objects import Manifest
from weft_operator.render.engines.adapters import ENGINES, engine_container, engine_files, kv_ports
from weft_operator.render.engines.container import BOOTSTRAP_PORT, CONFIG_FOLDER, ENGINE_PORT, EngineRequest
from weft_operator.render.objects import desired_objects
from weft_operator.render.router_config import router_json
from weft_operator_tests.samples import TOKEN, rendering, told
from weft_operator_tests.valid import (
    changed,
    neuron_service,
    service,
    sglang_service,
    spec,
    tensorrt_llm_service,
    vllm_service,
)
from weft_planner.request.engines import TABLE
from weft_router.config.engine import EngineConfig
from weft_router.engines.catalogue import ADAPTERS, adapter_for

BODIES = {
    "mock": service(),
    "vllm": vllm_service(),
    "sglang": sglang_service(),
    "tensorrt-llm": tensorrt_llm_service(),
    "neuron": neuron_service(),
}


def args(body: Manifest, role: str = "prefill", **more: int) -> list[str]:
    request = EngineRequest(role=role, degree=4, default_image="mock:1", **more)  # type: ignore[arg-type]
    return list(engine_container(spec(body), request).args)


def value_of(flags: list[str], name: str) -> str | None:
    return next((flag.partition("=")[2] for flag in flags if flag.startswith(f"{name}=")), None)


def test_the_api_accepts_exactly_the_engines_that_are_rendered_planned_and_spoken_to() -> None:
    accepted = set(get_args(EngineType))
    assert accepted == set(ENGINES) == set(BODIES) == set(TABLE)
    assert accepted <= set(ADAPTERS)


@pytest.mark.parametrize("engine", sorted(BODIES))
def test_routers_are_configured_with_the_engine_and_have_an_adapter_for_it(engine: str) -> None:
    config = told(rendering(BODIES[engine])).engine
    assert config.type == engine
    assert type(adapter_for(config.type)) is ADAPTERS[engine]


@pytest.mark.parametrize("engine", sorted(BODIES))
def test_no_flag_is_given_twice_and_a_user_cannot_give_a_managed_one(engine: str) -> None:
    flags = [flag.partition("=")[0] for flag in args(BODIES[engine]) if flag.startswith("--")]
    own = {flag.partition("=")[0] for flag in BODIES[engine]["spec"]["engine"].get("args", [])}
    assert len(set(flags)) == len(flags)
    free = {"revision", "enable-metrics", "log-requests", "enable-chunked-prefill", "block-size"}
    free |= {"enable-prompt-tokens-details"}
    mine = {flag for flag in flags if flag not in own and flag.removeprefix("--").replace("_", "-") not in free}
    assert {flag for flag in mine if not is_managed(engine, flag)} == ({"--time-scale"} & set(flags))  # type: ignore[arg-type]


ON_NODES = {
    "mock": ["--nodes=2", "--node-rank=$(WEFT_NODE_RANK)", "--leader=$(WEFT_LEADER):29500"],
    "vllm": ["--nnodes=2", "--node-rank=$(WEFT_NODE_RANK)", "--master-addr=$(WEFT_LEADER)", "--master-port=29500"],
    "sglang": ["--nnodes=2", "--node-rank=$(WEFT_NODE_RANK)", "--dist-init-addr=$(WEFT_LEADER):29500"],
    "tensorrt-llm": ["--extra_llm_api_options=/etc/weft/trtllm-prefill-nodes.json"],
}


@pytest.mark.parametrize("engine", sorted(ON_NODES))
def test_engines_on_several_nodes_get_a_rendezvous_address_and_others_do_not(engine: str) -> None:
    body = BODIES[engine]
    alone, several = args(body), args(body, nodes=2)
    assert set(ON_NODES[engine]) <= set(several)
    assert not set(ON_NODES[engine]) & set(alone)
    named = {flag.partition("=")[0] for flag in set(several) - set(alone)} - {"--distributed-executor-backend"}
    assert all(is_managed(engine, flag) for flag in named)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["vllm", "tensorrt-llm"])
@pytest.mark.parametrize("rank", ["0", "1"])
def test_each_node_finds_out_whether_it_leads(engine: str, rank: str, tmp_path: Path) -> None:
    """The command is run as a pod would, with programs that say what they were given."""
    for name in ("vllm", "trtllm-serve", "ray"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho {name} "$@"\n')
        program.chmod(0o755)
    request = EngineRequest(role="decode", degree=8, default_image="x", nodes=2)
    found = engine_container(spec(BODIES[engine]), request)
    env = {"PATH": f"{tmp_path}:/bin:/usr/bin", "WEFT_NODE_RANK": rank, "WEFT_LEADER": "lead", "POD_IP": "10.0.0.9"}
    done = subprocess.run([*found.command, *found.args], env=env, capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    if engine == "vllm":
        assert said == [f"vllm serve {' '.join(found.args)}" + (" --headless" if rank == "1" else "")]
    elif rank == "1":
        assert said == ["ray start --address=lead:29500 --node-ip-address=10.0.0.9 --disable-usage-stats --block"]
    else:
        assert said[0] == "ray start --head --port=29500 --node-ip-address=10.0.0.9 --disable-usage-stats"
        assert said[1] == f"trtllm-serve {' '.join(found.args)}"


def test_tensorrt_llm_has_options_for_several_nodes_where_such_a_worker_may_be_planned() -> None:
    within = engine_files(spec(tensorrt_llm_service()), paired=True)
    over = engine_files(spec(changed(tensorrt_llm_service(), "spec.capacity.pools.0.gpusPerNode", 4)), paired=True)
    assert sorted(set(over) - set(within)) == ["trtllm-decode-nodes.json", "trtllm-prefill-nodes.json"]
    assert {name: over[name] for name in within} == dict(within), "the others change nothing"
    for role in ("prefill", "decode"):
        added = json.loads(over[f"trtllm-{role}-nodes.json"])
        assert added == {**json.loads(over[f"trtllm-{role}.json"]), "orchestrator_type": "ray"}


def test_sglang_meets_at_the_bootstrap_server_of_prefill() -> None:
    prefill, decode = args(sglang_service()), args(sglang_service(), "decode")
    assert value_of(prefill, "--disaggregation-bootstrap-port") == str(BOOTSTRAP_PORT)
    assert EngineConfig(type="sglang").bootstrap_port == BOOTSTRAP_PORT, "the router sends the same port"
    assert value_of(decode, "--disaggregation-bootstrap-port") is None
    assert (value_of(prefill, "--disaggregation-mode"), value_of(decode, "--disaggregation-mode")) == (
        "prefill",
        "decode",
    )
    assert value_of(decode, "--host") == "127.0.0.1"
    assert {value_of(flags, "--page-size") for flags in (prefill, decode)} == {"64"}
    assert kv_ports(spec(sglang_service()), "prefill").single == (BOOTSTRAP_PORT,)
    assert kv_ports(spec(sglang_service()), "decode").single == ()


def test_both_roles_of_tensorrt_llm_move_kv_over_the_connector() -> None:
    plain = tensorrt_llm_service()
    over_ucx = changed(plain, "spec.engine.kvTransfer.connector", "ucx")
    files = engine_files(spec(over_ucx), paired=True)
    assert {json.loads(text)["cache_transceiver_config"]["backend"] for text in files.values()} == {"UCX"}
    assert kv_ports(spec(over_ucx), "prefill") == kv_ports(spec(plain), "prefill")
    assert rendering(over_ucx).revision != rendering(plain).revision, "workers of both connectors never pair"


def test_tensorrt_llm_reads_what_has_no_flag_from_a_file_of_its_role() -> None:
    parsed = spec(tensorrt_llm_service())
    files = engine_files(parsed, paired=True)
    for role in ("prefill", "decode"):
        path = value_of(args(tensorrt_llm_service(), role), "--extra_llm_api_options")
        assert path is not None
        options = json.loads(files[path.removeprefix(f"{CONFIG_FOLDER}/")])
        assert options["cache_transceiver_config"] == {"backend": "NIXL", "max_tokens_in_buffer": 32768}
        assert options.get("disable_overlap_scheduler", False) is (role == "prefill")
        assert options["return_perf_metrics"] is True, "the router reads its load"
    together = engine_files(parsed, paired=False)
    path = value_of(args(tensorrt_llm_service(), "decode", paired=False), "--extra_llm_api_options")
    (options,) = (json.loads(text) for text in together.values())
    assert path == f"{CONFIG_FOLDER}/{next(iter(together))}"
    assert "cache_transceiver_config" not in options


def test_block_sizes_go_to_the_flag_of_each_engine() -> None:
    sizes = {"bidirectional": False, "blockTokens": {"prefill": 16, "decode": 64}}
    body = changed(vllm_service(), "spec.engine.kvTransfer", sizes)
    assert [value_of(args(body, role), "--block-size") for role in ("prefill", "decode")] == ["16", "64"]
    assert value_of(args(vllm_service()), "--block-size") is None
    same = {"bidirectional": False, "blockTokens": {"prefill": 32, "decode": 32}}
    files = engine_files(spec(changed(tensorrt_llm_service(), "spec.engine.kvTransfer", same)), paired=True)
    assert {json.loads(text)["kv_cache_config"]["tokens_per_block"] for text in files.values()} == {32}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "neuron"])
def test_engines_listen_where_the_sidecar_reaches_them(engine: str) -> None:
    for role in ("prefill", "decode"):
        flags = args(BODIES[engine], role)
        assert value_of(flags, "--port") == str(ENGINE_PORT)
        open_to_others = (engine, role) == ("sglang", "prefill")
        assert value_of(flags, "--host") == ("$(POD_IP)" if open_to_others else "127.0.0.1")


@pytest.mark.parametrize("engine", sorted(BODIES))
def test_no_engine_or_sidecar_is_bound_to_one_family_of_addresses(engine: str) -> None:
    """Loopback apart, which every pod has in IPv4: one template has to serve pods of either family."""
    made = desired_objects(rendering(BODIES[engine]), token=TOKEN)
    groups = [item for item in made if item["kind"] == "WorkerGroup"]
    assert groups
    for group in groups:
        pod = group["spec"]["template"]["spec"]
        (router,), (worker,) = pod["initContainers"], pod["containers"]
        assert "--listen=[::]:8080" in router["args"]
        open_to_others = (engine, group["spec"].get("role")) == ("sglang", "prefill")
        # In a URL an address of IPv6 would need brackets; the name is that of the pod's own hosts file.
        host = "$(POD_NAME)" if open_to_others else "127.0.0.1"
        assert f"--engine-url=http://{host}:8000" in router["args"]
        assert not any("0.0.0.0" in word for word in (*router["args"], *worker["args"]))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "neuron"])
def test_weights_come_from_a_volume_for_every_engine(engine: str) -> None:
    body = changed(BODIES[engine], "spec.model.source", {"pvc": {"claimName": "models", "path": "llama"}})
    request = EngineRequest(role="decode", degree=8, default_image="")
    container = engine_container(spec(body), request)
    assert any("/models/llama" in word for word in container.args)
    assert [mount["mountPath"] for mount in container.mounts] == ["/models"]
    gated = {"huggingFace": {"revision": "main", "tokenSecretRef": {"name": "huggingface", "key": "token"}}}
    hub = engine_container(spec(changed(BODIES[engine], "spec.model.source", gated)), request)
    assert hub.secret_env == (("HF_TOKEN", "huggingface", "token"),)
    assert "--revision=main" in hub.args


def test_a_changed_block_size_is_another_revision_and_an_absent_one_is_none() -> None:
    sizes = {"blockTokens": {"prefill": 16, "decode": 16}}
    plain, sized = rendering(vllm_service()), rendering(changed(vllm_service(), "spec.engine.kvTransfer", sizes))
    assert plain.revision != sized.revision
    assert plain.revision == "b573a3ca25", "an operator that knows more fields restarts no worker"


def test_how_often_paths_are_proven_is_the_routers_business_and_keeps_workers_paired() -> None:
    plain = rendering(vllm_service())
    often = rendering(changed(vllm_service(), "spec.engine.kvTransfer", {"proofSeconds": 4}))
    assert often.revision == plain.revision
    assert router_json(often)["engine"] == {**router_json(plain)["engine"], "proofSeconds": 4}
    assert "proofSeconds" not in router_json(plain)["engine"], "as it was before there was such a field"


@pytest.mark.parametrize(
    ("hosts", "flags"),
    [
        (["media.example.com", "cdn.example.com:8443"], ["cdn.example.com", "media.example.com"]),
        (["media.example.com", "*.cdn.net"], []),
    ],
)
def test_vllm_is_configured_with_allowed_hosts_and_follows_no_redirects(hosts: list[str], flags: list[str]) -> None:
    body = changed(vllm_service(), "spec.coordinator", {"requests": {"allowedMediaHosts": hosts}})
    request = EngineRequest(role="decode", degree=1, default_image="x")
    found = engine_container(spec(body), request)
    assert dict(found.env)["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
    at = found.args.index("--allowed-media-domains") if flags else len(found.args)
    assert list(found.args[at + 1 : at + 1 + len(flags)]) == flags
    fields = changed(vllm_service(), "spec.coordinator", {"requests": {"allowedFields": ["chat_template"]}})
    plain = engine_container(spec(vllm_service()), request)
    assert engine_container(spec(fields), request) == plain, "no engine restarts for fields"
    assert "VLLM_MEDIA_URL_ALLOW_REDIRECTS" not in dict(plain.env)
    assert "--allowed-media-domains" not in plain.args
