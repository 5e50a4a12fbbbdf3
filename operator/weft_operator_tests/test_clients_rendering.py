"""Names of the model, limits and web pages of a service reach its coordinators, and no engine that need not know."""

from typing import Any

import orjson
import pytest

from weft_operator.render.egress import coordinator_egress
from weft_operator.render.engines.adapters import engine_container
from weft_operator.render.engines.container import EngineRequest
from weft_operator.render.router_config import front_json, live_json, router_json
from weft_operator_tests.samples import rendering
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


@pytest.mark.parametrize(
    ("body", "flags"),
    [
        (vllm_service(), ["--enable-lora", "--max-lora-rank=32", "--max-loras=3", "--lora-modules"]),
        (sglang_service(), ["--enable-lora", "--max-lora-rank=32", "--max-loras-per-batch=4", "--lora-paths"]),
    ],
)
def test_every_worker_loads_every_adapter(body: Any, flags: list[str]) -> None:
    body = changed(changed(body, "spec.model.adapters", ADAPTERS), "spec.model.maxAdapterRank", 32)
    container = engine_container(spec(body), EngineRequest(role="decode", degree=1, default_image="x"))
    at = container.args.index("--enable-lora")
    places = ["sql=/adapters/0/sql", "chat=/adapters/0/chat", "law=acme/law-lora"]
    assert list(container.args[at : at + 7]) == [*flags, *places]
    assert "/adapters/0" in [mount["mountPath"] for mount in container.mounts]
    assert front_json(rendering(body))["model"]["adapters"] == ["sql", "chat", "law"]
    assert rendering(body).revision != rendering(changed(body, "spec.model.adapters", ADAPTERS[:2])).revision


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
