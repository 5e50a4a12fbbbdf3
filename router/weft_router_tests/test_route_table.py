"""Which service serves a model: the oldest of those that have the name, whatever order they are read in."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_router.config import ModelConfig
from weft_router.gateway.route_table import NameConflict, RouteTable
from weft_router.gateway.served_service import PATIENCE_S, ServedService, service_of


def made(
    name: str, created: str = "2026-01-01T00:00:00Z", *names: str, namespace: str = "a", **more: Any
) -> ServedService:
    model, *aliases = names or (f"model-of-{name}",)
    config = ModelConfig.model_validate({"name": model, "aliases": aliases, "maxModelLen": 4096})
    return ServedService(
        namespace=namespace, name=name, created=created, url=f"http://{name}", model=config,
        pooling=more.get("pooling", False), total_s=60.0,
    )  # fmt: skip


OLD = made("old", "2026-01-01T00:00:00Z", "llama", "gpt-4")
NEW = made("new", "2026-02-01T00:00:00Z", "qwen", "gpt-4", "llama")


def test_the_oldest_service_has_a_name_and_the_conflict_is_told() -> None:
    for services in ([OLD, NEW], [NEW, OLD]):
        table = RouteTable(services)
        assert table.find("gpt-4") is OLD
        assert table.find("llama") is OLD
        assert table.find("qwen") is NEW
        assert table.conflicts == (
            NameConflict("gpt-4", "a/old", ("a/new",)),
            NameConflict("llama", "a/old", ("a/new",)),
        )
        assert [name for name, _ in table.models] == ["llama", "gpt-4", "qwen"]
    assert RouteTable([NEW]).find("gpt-4") is NEW
    assert RouteTable([NEW]).conflicts == ()


def test_of_two_of_one_age_the_first_by_namespace_and_name_has_it() -> None:
    one, two = made("x", "", "m", namespace="a"), made("b", "", "m", namespace="b")
    assert RouteTable([two, one]).find("m") is one


NAMES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True)
SERVICES = st.lists(
    st.builds(
        lambda name, created, names: made(name, str(created), *names),
        st.sampled_from(("s1", "s2", "s3")), st.integers(0, 3), NAMES,
    ),
    max_size=3, unique_by=lambda service: service.key,
)  # fmt: skip


@given(SERVICES, st.randoms(use_true_random=False))
def test_every_name_leads_to_one_service_that_has_it_in_any_order(services: list[ServedService], rng: Any) -> None:
    table = RouteTable(services)
    shuffled = list(services)
    rng.shuffle(shuffled)
    other = RouteTable(shuffled)
    assert table.models == other.models
    assert table.conflicts == other.conflicts
    for name in {name for service in services for name in service.names}:
        found = table.find(name)
        assert found is not None
        assert name in found.names
        assert found.created == min(service.created for service in services if name in service.names)
        claims = [service for service in services if name in service.names]
        assert (len(claims) > 1) is (name in {conflict.name for conflict in table.conflicts})


def test_a_message_names_some_models_and_how_many_more() -> None:
    assert RouteTable().shown_names == "none yet"
    table = RouteTable([made(f"s{i:02}") for i in range(40)])
    assert table.shown_names.endswith("'model-of-s31' and 8 more")
    assert [service.key for service in RouteTable([OLD, replace(NEW, pooling=True)]).pooling] == ["a/new"]


def manifest(**spec: Any) -> dict[str, Any]:
    model = {"name": "meta-llama/Llama-3.1-70B-Instruct", "maxModelLen": 8192, **spec.pop("model", {})}
    metadata = {"name": "llama", "namespace": "team-a", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "spec": {"model": model, **spec}}


def test_a_service_is_read_from_its_object() -> None:
    plain = service_of(manifest())
    assert (plain.key, plain.url, plain.created) == ("team-a/llama", "http://llama.team-a.svc", "2026-01-01T00:00:00Z")
    assert plain.names == ("meta-llama/Llama-3.1-70B-Instruct",)
    assert (plain.model.max_model_len, plain.pooling, plain.total_s) == (8192, False, 3600.0 + PATIENCE_S)
    full = service_of(
        manifest(
            model={"servedName": "llama", "aliases": ["gpt-4"], "adapters": [{"name": "sql", "source": {}}]},
            coordinator={
                "tls": {"secretRef": {"name": "x"}},
                "poolingUrl": "http://e",
                "limits": {"totalTimeout": "10m"},
            },
            planning={"scaleToZero": {"hold": "2m"}},
        )
    )
    assert full.names == ("llama", "gpt-4", "sql")
    assert (full.url, full.pooling, full.total_s) == ("https://llama.team-a.svc", True, 720.0 + PATIENCE_S)


@pytest.mark.parametrize(
    "bad",
    [
        {}, {"metadata": {}, "spec": {}}, {"metadata": {"name": "a", "namespace": "b"}}, manifest(model={"name": ""}),
        manifest(model={"adapters": [{}]}), manifest(coordinator={"limits": {"totalTimeout": "soon"}}),
        manifest(model={"maxModelLen": "many"}), {"metadata": None, "spec": None},
    ],
)  # fmt: skip
def test_what_is_no_service_is_refused_with_one_kind_of_error(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        service_of(bad)
