"""Names of the model, limits and web pages of a service reach its coordinators, and no engine that need not know."""

from typing import Any

import orjson
import pytest

from weft_core.parallelism import parse_degree
from weft_operator.render.egress import coordinator_egress, worker_egress
from weft_operator.render.engines.adapters import engine_container
from weft_operator.render.engines.container import LOOPBACK, EngineRequest
from weft_operator.render.objects import desired_objects
from weft_operator.render.router_config import front_json, live_json, router_json
from weft_operator_tests.samples import TOKEN, rendering
from weft_operator_tests.valid import changed, service, sglang_service, spec, vllm_service
from weft_router.config.file import read_config


def coordinator(**fields: Any) -> Any:
    return rendering(changed(service(), "spec.coordinator", fields))


def test_aliases_are_the_coordinators_and_restart_no_worker() -> None:
    plain = rendering(vllm_service())
    named = rendering(changed(vllm_service(), "spec.model.aliases", ["gpt-4", "llama:latest"]))
    assert front_json(named)["model"]["aliases"] == ["gpt-4", "llama:latest"]
    assert router_json(named) == router_json(plain)
    assert named.revision == plain.revision


def test_a_served_name_is_the_engines_the_routers_and_nobody_elses() -> None:
    plain = rendering(vllm_service())
    body = changed(vllm_service(), "spec.model.servedName", "llama-70b")
    named = rendering(body)
    assert front_json(named)["model"]["name"] == "llama-70b"
    container = engine_container(spec(body), EngineRequest(role="decode", degree=1, default_image="x"))
    assert "--served-model-name=llama-70b" in container.args
    assert named.spec.model.name == plain.spec.model.name
    assert named.revision != plain.revision, "workers that serve another name cannot serve each other's rounds"


ADAPTERS = [
    {"name": "sql", "source": {"pvc": {"claimName": "adapters", "path": "sql"}}},
    {"name": "chat", "source": {"pvc": {"claimName": "adapters", "path": "chat"}}},
    {"name": "law", "source": {"huggingFace": "acme/law-lora"}},
]


def templates(body: Any) -> list[Any]:
    """Return what decides whether pods start again: every pod template, and the revision."""
    made = rendering(body)
    specs = [item.get("spec") or {} for item in desired_objects(made, token=TOKEN)]
    return [made.revision, *((found["template"], found.get("templateHash")) for found in specs if "template" in found)]


@pytest.mark.parametrize("engine", ["vllm", "mock"])
def test_a_change_of_adapters_reaches_running_engines_and_restarts_none(engine: str) -> None:
    body = vllm_service() if engine == "vllm" else service()
    some, more = (changed(body, "spec.model.adapters", listed) for listed in (ADAPTERS[:1], ADAPTERS))
    assert live_json(rendering(more))["adapters"] == [
        {"name": "sql", "source": "/adapters/adapters/sql"},
        {"name": "chat", "source": "/adapters/adapters/chat"},
        {"name": "law", "source": "acme/law-lora"},
    ]
    assert "adapters" not in front_json(rendering(more))["model"]
    assert "adapters" not in live_json(rendering(body))
    assert templates(more) == templates(some)
    assert templates(changed(body, "spec.model.adapters", [ADAPTERS[2]])) == templates(
        changed(body, "spec.model.adapters", [])
    )
    elsewhere = {"name": "x", "source": {"pvc": {"claimName": "others", "path": "x"}}}
    same = templates(changed(body, "spec.model.adapters", [*ADAPTERS, elsewhere])) == templates(more)
    assert same == (engine == "mock"), "another volume restarts engines that read it"


@pytest.mark.parametrize(("degree", "nodes", "flag"), [(1, 1, False), ("tp4dp2ep", 1, True), ("tp8dp2ep", 2, False)])
def test_vllm_has_its_endpoints_for_adapters_in_one_server(degree: Any, nodes: int, flag: bool) -> None:
    body = changed(changed(vllm_service(), "spec.model.adapters", ADAPTERS), "spec.model.maxAdapterRank", 32)
    request = EngineRequest(role="decode", degree=parse_degree(str(degree)), default_image="x", nodes=nodes)
    container = engine_container(spec(body), request)
    at = container.args.index("--enable-lora")
    assert container.args[at : at + 4] == ("--enable-lora", "--max-lora-rank=32", "--max-loras=4", "--max-cpu-loras=32")
    assert ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1") in container.env
    assert f"--host={LOOPBACK}" in container.args, "no other process reaches them"
    assert "/adapters/adapters" in [mount["mountPath"] for mount in container.mounts]
    assert ("--api-server-count=1" in container.args) == flag
    if nodes > 1:
        assert 'leader=$POD_IP; set -- "$@" --api-server-count=1; else' in container.command[2]
    plain = engine_container(spec(vllm_service()), request)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in dict(plain.env)
    assert "--api-server-count" not in " ".join((*plain.args, *plain.command))


def test_sglang_loads_adapters_at_its_start() -> None:
    body = changed(changed(sglang_service(), "spec.model.adapters", ADAPTERS), "spec.model.maxAdapterRank", 32)
    container = engine_container(spec(body), EngineRequest(role="decode", degree=1, default_image="x"))
    at = container.args.index("--enable-lora")
    places = ("sql=/adapters/adapters/sql", "chat=/adapters/adapters/chat", "law=acme/law-lora")
    flags = ("--enable-lora", "--max-lora-rank=32", "--max-loras-per-batch=4", "--lora-paths")
    assert container.args[at : at + 7] == (*flags, *places)
    made = rendering(body)
    assert front_json(made)["model"]["adapters"] == ["sql", "chat", "law"]
    assert "adapters" not in live_json(made)
    assert made.revision != rendering(changed(body, "spec.model.adapters", ADAPTERS[:2])).revision


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"adapters": [ADAPTERS[0], ADAPTERS[0]]}, "two have the same name"),
        ({"adapters": ADAPTERS[:1], "aliases": ["sql"]}, "two have the same name"),
        ({"adapters": [{"name": "x", "source": {}}]}, "exactly one of"),
        ({"servedName": "gpt", "aliases": ["gpt"]}, "holds the served name itself"),
    ],
)
def test_names_that_contradict_are_refused(fields: Any, message: str) -> None:
    body = vllm_service()
    for name, value in fields.items():
        body = changed(body, f"spec.model.{name}", value)
    with pytest.raises(ValueError, match=message):
        spec(body)


def test_an_answer_may_fill_the_context_unless_there_is_a_limit() -> None:
    long = rendering(changed(service(), "spec.model.maxModelLen", 131_072))
    assert router_json(long)["limits"]["maxOutputTokens"] == 131_072
    assert router_json(coordinator(limits={"maxOutputTokens": 100}))["limits"]["maxOutputTokens"] == 100


def test_times_of_streams_are_every_routers() -> None:
    assert "timeouts" not in router_json(coordinator())
    made = coordinator(
        limits={"idleTimeout": "10m", "totalTimeout": "2h", "keepAlive": "0s", "maxHeaderBytes": 131_072}
    )
    assert router_json(made)["timeouts"] == {"idle": 600, "total": 7200, "silence": 0}
    assert front_json(made)["limits"]["maxHeaderBytes"] == 131_072


def test_web_pages_and_embeddings() -> None:
    url = "http://embeddings.models.svc:8000"
    made = coordinator(cors={"allowedOrigins": ["https://chat.example.com"]}, poolingUrl=url)
    config = front_json(made)
    assert config["cors"] == {"allowedOrigins": ["https://chat.example.com"]}
    assert config["poolingUrl"] == url
    ports = [port["port"] for rule in coordinator_egress(made) for port in rule.get("ports", ())]
    assert 8000 in ports
    assert 8000 not in [p["port"] for rule in coordinator_egress(coordinator()) for p in rule.get("ports", ())]


@pytest.mark.parametrize(
    "made", [coordinator(), coordinator(cors={"allowedOrigins": ["*"]}, poolingUrl="http://a.b.svc")]
)
def test_routers_read_it(made: Any) -> None:
    read_config(orjson.dumps({**front_json(made), **live_json(made)}), source="router.json")


MIRROR = "http://mirror.models.svc:8080"
CACHED = {
    "endpoint": MIRROR, "tokenSecretRef": {"name": "hub", "key": "token"},
    "cache": {"claim": {"existingClaim": "weights"}},
}  # fmt: skip
STORE = {"bucket": "models", "endpoint": "http://minio.models.svc:9000", "cache": CACHED["cache"]}


@pytest.mark.parametrize(
    ("source", "ports"),
    [
        ({"pvc": {"claimName": "weights", "path": "m"}}, {443}),
        ({"huggingFace": CACHED}, {8080}),
        ({"s3": STORE}, {443}),
    ],
)
def test_engines_reach_the_hub_for_adapters_wherever_the_model_comes_from(source: Any, ports: set[int]) -> None:
    body = changed(vllm_service(), "spec.model.source", source)
    of_hub = changed(body, "spec.model.adapters", ADAPTERS[2:])
    request = EngineRequest(role="decode", degree=1, default_image="x")
    plain, adapted = (engine_container(spec(one), request) for one in (body, of_hub))
    assert not plain.secret_env
    assert "HF_HUB_OFFLINE" not in dict(adapted.env)
    if "huggingFace" in source:
        assert "HF_HUB_OFFLINE" in dict(plain.env)
        assert ("HF_ENDPOINT", MIRROR) in adapted.env
        assert adapted.secret_env == (("HF_TOKEN", "hub", "token"),)

    def reached(made: Any) -> set[int]:
        return {port["port"] for rule in worker_egress(rendering(made)) for port in rule.get("ports", ())}

    assert not reached(changed(body, "spec.model.adapters", ADAPTERS[:1])) & {443, 8080}
    assert reached(of_hub) & {443, 8080} == ports
