"""Which LoRA adapters of an engine are loaded and unloaded, and what is read of the engine's answers."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.adapters import adapter_name, adapter_version
from weft_router.config import ConfigError, LimitsConfig, ModelConfig, read_config
from weft_router.config.engine import AdapterConfig
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import Inference, check_request
from weft_router.openai.prompt_history import extends, history_of, with_reply
from weft_router.workers.adapters import MAX_WORDS, adapters_of, changes, words_of
from weft_router_tests.stack import router_json

NAMES = st.sampled_from(["a", "b", "c"])
PLACES = st.dictionaries(NAMES, st.sampled_from(["x", "y"]))


@pytest.mark.parametrize(
    ("wanted", "loaded", "in_use", "unload", "load"),
    [
        ({"a": "x"}, {}, set(), [], ["a"]),
        ({"a": "x"}, {"a": "x"}, set(), [], []),
        ({}, {"a": "x"}, set(), ["a"], []),
        ({}, {"a": "x"}, {"a"}, [], []),
        ({"a": "y"}, {"a": "x"}, set(), ["a"], ["a"]),
        ({"a": "y"}, {"a": "x"}, {"a"}, [], []),
        ({"b": "x"}, {"a": "x"}, set(), ["a"], ["b"]),
    ],
)
def test_what_is_missing_is_loaded_and_what_nobody_wants_or_uses_is_not_kept(
    wanted: dict[str, str], loaded: dict[str, str], in_use: set[str], unload: list[str], load: list[str]
) -> None:
    assert changes(wanted, loaded, in_use) == (unload, load)


@given(wanted=PLACES, loaded=PLACES, in_use=st.sets(NAMES))
def test_in_the_end_the_engine_has_what_is_wanted(
    wanted: dict[str, str], loaded: dict[str, str], in_use: set[str]
) -> None:
    unload, load = changes(wanted, loaded, in_use)
    assert not in_use & set(unload)
    for name in unload:
        del loaded[name]
    for name in load:
        assert name not in loaded, "engines refuse what they have"
        loaded[name] = wanted[name]
    for name in in_use & loaded.keys():  # their rounds have ended
        if wanted.get(name) != loaded[name]:
            assert changes(wanted, loaded, set())[0]
    unload, load = changes(wanted, loaded, set())
    for name in unload:
        del loaded[name]
    loaded.update({name: wanted[name] for name in load})
    assert loaded == wanted


def test_an_engines_list_of_models_names_its_adapters() -> None:
    listed = [
        {"id": "m", "root": "/weights", "parent": None},
        {"id": "sql", "root": "/adapters/a/sql", "parent": "m"},
        {"id": "law", "root": "acme/law", "parent": "m"},
    ]
    assert adapters_of(orjson.dumps({"data": listed})) == {"sql": "/adapters/a/sql", "law": "acme/law"}
    for page in (b"", b"[]", b'{"data": 1}', b'{"data": [1]}', b'{"data": [{"parent": "m"}]}'):
        assert adapters_of(page) == {}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"error": {"message": "No adapter found for /x", "code": 404}}, "No adapter found for /x"),
        ({"object": "error", "message": "LoRA rank 64 is too large"}, "LoRA rank 64 is too large"),
        ({"error": "x"}, "status 404"),
        ([], "status 404"),
        ({"error": {"message": "x" * 1000}}, "x" * MAX_WORDS),
    ],
)
def test_a_refusal_is_reported_in_the_engines_words(answer: Any, words: str) -> None:
    assert words_of(orjson.dumps(answer), 404) == words


def test_no_two_models_have_one_name() -> None:
    sql = {"name": "sql", "source": "acme/sql"}
    for model, listed in (({"adapters": ["sql"]}, [sql]), ({"aliases": ["sql"]}, [sql]), ({}, [sql, sql])):
        body = {**router_json(model=model), "adapters": listed}
        with pytest.raises(ConfigError, match="sql is the name of two"):
            read_config(orjson.dumps(body), source="router.json")
    both = read_config(orjson.dumps({**router_json(model={"adapters": ["law"]}), "adapters": [sql]}), source="x")
    assert RequestLimits(both.model, both.limits, adapters=both.adapters).adapters == {
        "law": "", "sql": adapter_version("sql", "acme/sql"),
    }  # fmt: skip


def test_a_version_has_its_name() -> None:
    for name in ("sql", "acme/sql:v2", "a@b"):
        assert adapter_name(adapter_version(name, "x")) == name
        assert adapter_version(name, "x") != adapter_version(name, "y")


def asked(source: str, path: str, **fields: Any) -> Inference:
    limits = RequestLimits(
        ModelConfig.model_validate({"name": "m", "maxModelLen": 4096}),
        LimitsConfig(),
        adapters=[AdapterConfig(name="sql", source=source)],
    )
    return check_request(path, {"model": "sql", **fields}, limits)


@pytest.mark.parametrize(
    ("path", "first", "reply", "second"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}]},
            "b",
            {"messages": [{"role": r, "content": c} for r, c in (("user", "a"), ("assistant", "b"), ("user", "c"))]},
        ),
        ("/v1/completions", {"prompt": "a"}, "b", {"prompt": "abc"}),
        ("/v1/completions", {"prompt": [1]}, [2], {"prompt": [1, 2, 3]}),
    ],
)
def test_a_prompt_goes_on_only_with_the_adapter_of_the_same_source(
    path: str, first: dict[str, Any], reply: Any, second: dict[str, Any]
) -> None:
    begun = asked("x", path, **first)
    seen = with_reply(history_of(begun), begun, reply)
    same, other = asked("x", path, **second), asked("y", path, **second)
    assert extends(same, history_of(same), seen)
    assert not extends(other, history_of(other), seen)
