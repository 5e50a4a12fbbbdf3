"""A role's settings over those of both roles: values, arguments in every spelling, and the order of variables."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from weft_operator.api.engine import Engine
from weft_operator.api.engine_flags import MANAGED, EngineType, flag_name
from weft_operator.api.engine_merge import engine_of_role, measured_engine, merged_args, merged_env
from weft_operator.api.engine_parts import EnvVar
from weft_operator_tests.test_engine_flags import FREE_NAMES, OPTIONS, managed, reached, spellings

IMAGE = "registry.example.com/vllm:0.32.0"
SHARED = {
    "type": "vllm",
    "image": IMAGE,
    "args": ["--seed=1"],
    "env": [{"name": "A", "value": "1"}],
    "resources": {"requests": {"cpu": 8}, "limits": {"memory": "200Gi"}},
    "maxNumSeqs": 256,
    "sharedMemory": "16Gi",
}
DECODE = {
    "image": "registry.example.com/vllm:0.32.1",
    "args": ["--seed=2"],
    "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}],
    "resources": {"requests": {"cpu": 4}},
    "memoryFraction": 0.8,
    "maxNumSeqs": 512,
    "maxNumBatchedTokens": 2048,
    "quantization": "fp8",
}


def engine(**fields: object) -> Engine:
    return Engine.model_validate({**SHARED, **fields})


def variables(*pairs: tuple[str, str]) -> list[EnvVar]:
    return [EnvVar(name=name, value=value) for name, value in pairs]


def test_a_role_s_values_take_the_place_of_the_shared_ones() -> None:
    both = engine(decode=DECODE)
    decode = engine_of_role(both, "decode")
    assert (decode.image, decode.memory_fraction, decode.quantization) == (DECODE["image"], 0.8, "fp8")
    assert (decode.max_num_seqs, decode.max_num_batched_tokens) == (512, 2048)
    assert decode.resources.model_dump() == {"requests": {"cpu": 4}, "limits": {}}, "resources are replaced as a whole"
    assert decode.args == ["--seed=2"]
    assert [(item.name, item.value) for item in decode.env] == [("A", "2"), ("B", "3")]
    assert (decode.shared_memory, decode.kv_transfer) == (both.shared_memory, both.kv_transfer)
    assert engine_of_role(both, "prefill") == engine(), "the other role has the shared ones alone"
    assert engine_of_role(engine(prefill={}, decode={}), "decode") == engine()


def test_engines_are_measured_with_shared_settings_and_the_least_memory() -> None:
    assert measured_engine(engine(decode=DECODE)) == engine(memoryFraction=0.8)
    assert measured_engine(engine(prefill={"memoryFraction": 0.95})) == engine(), "decode has 0.9"
    both = engine(prefill={"memoryFraction": 0.95}, decode={"memoryFraction": 0.95})
    assert measured_engine(both).memory_fraction == 0.95


@pytest.mark.parametrize(
    ("kind", "shared", "own", "merged"),
    [
        ("vllm", ["--seed=1"], ["--seed=2"], ["--seed=2"]),
        ("vllm", ["--seed", "1", "--enforce-eager"], ["--seed=2"], ["--enforce-eager", "--seed=2"]),
        ("vllm", ["--seed=1"], ["--seed", "2"], ["--seed", "2"]),
        ("vllm", ["--swap_space=4"], ["--swap-space=8"], ["--swap-space=8"]),
        ("vllm", ["--enforce-eager"], ["--no-enforce-eager"], ["--no-enforce-eager"]),
        ("vllm", ["--no-enforce-eager"], ["--enforce-eager"], ["--enforce-eager"]),
        (
            "vllm",
            ["--enable-lora", "-cc", "{}"],
            ["--compilation-config={}"],
            ["--enable-lora", "--compilation-config={}"],
        ),
        ("vllm", ["--middleware", "a", "b", "--seed=1"], ["--middleware=c"], ["--seed=1", "--middleware=c"]),
        ("vllm", ["-cc.a=1"], ["-cc.b=2"], ["-cc.a=1", "-cc.b=2"]),
        ("vllm", ["-cc.a=1", "-cc.b=1"], ["--compilation_config.a=2"], ["-cc.b=1", "--compilation_config.a=2"]),
        ("vllm", ["-cc.a=1"], ["--compilation-config={}"], ["--compilation-config={}"]),
        ("vllm", ["--compilation-config={}"], ["-cc.a=1"], ["-cc.a=1"]),
        ("vllm", ["--enable-lora"], ["--enable-lora-bias"], ["--enable-lora", "--enable-lora-bias"]),
        ("vllm", ["--bias", "-1", "--seed=1"], ["--bias=-2"], ["--seed=1", "--bias=-2"]),
        ("tensorrt-llm", ["--cluster_size=4"], ["--moe_cluster_parallel_size=2"], ["--moe_cluster_parallel_size=2"]),
        ("mock", ["--fault", "{}"], [], ["--fault", "{}"]),
    ],
)
def test_a_role_s_flag_leaves_out_the_same_shared_one(
    kind: EngineType, shared: list[str], own: list[str], merged: list[str]
) -> None:
    assert merged_args(kind, shared, own) == merged


@st.composite
def written(draw: st.DrawFn, names: Sequence[str]) -> list[str]:
    """Return one of vLLM's flags by one of its names, as an author may write it."""
    name = draw(st.sampled_from(names))
    if name.startswith("--"):
        name = "--" + "".join(draw(st.sampled_from("-_")) if letter == "-" else letter for letter in name[2:])
    return draw(st.sampled_from([[name], [f"{name}=4"], [name, "4"], [name, "-1", "x"]]))


OWN_FLAGS = sorted({names[0] for names in OPTIONS.values() if not managed(names) and "-h" not in names})


@given(st.data(), st.sampled_from(OWN_FLAGS), st.sampled_from(OWN_FLAGS))
@settings(max_examples=200)
def test_of_a_flag_in_two_spellings_the_role_s_is_left(data: st.DataObject, name: str, other: str) -> None:
    shared, own = data.draw(written(OPTIONS[name])), data.draw(written(OPTIONS[name]))
    beside = data.draw(written(OPTIONS[other]))
    kept = [] if other == name else beside
    assert merged_args("vllm", [*shared, *beside], own) == [*kept, *own]
    assert merged_args("vllm", [*beside, *shared], own) == [*kept, *own]


def test_no_two_flags_of_vllm_have_one_name() -> None:
    names: dict[str | None, set[str]] = {}
    for option, spelled in OPTIONS.items():
        for name in spelled:
            if name in FREE_NAMES and name != "-h":
                names.setdefault(flag_name("vllm", name), set()).add(option)
    assert [several for several in names.values() if len(several) > 1] == []


def refused(fields: dict[str, object]) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Engine.model_validate(fields)
    return [error["msg"] for error in caught.value.errors()]


@given(spellings(), st.sampled_from(["prefill", "decode"]), st.integers(0, 2))
@settings(max_examples=100, deadline=None)
@example("-tp", "decode", 1)
@example("--tensor_parallel_size=4", "prefill", 0)
@example("--max-num-se", "decode", 2)
def test_a_managed_flag_of_a_role_is_refused_with_its_place(argument: str, role: str, place: int) -> None:
    names = reached(argument)
    if names is not None and not managed(names):
        return  # the whole name of another flag
    args = ["--seed=1", "--enforce-eager"]
    args.insert(place, argument)
    (message,) = refused({**SHARED, role: {"args": args}})
    assert message.startswith(f"spec.engine.{role}.args[{place}]: the operator sets one of "), message
    assert message.endswith(f" (got {argument!r})")


@pytest.mark.parametrize("kind", sorted(MANAGED))
def test_roles_may_not_have_what_engines_share_may_not(kind: EngineType) -> None:
    body = {"type": kind, "image": IMAGE, "maxNumSeqs": 8, "kvTransfer": {"bidirectional": False}}
    for flag in MANAGED[kind].long:
        (message,) = refused({**body, "decode": {"args": [f"--{flag.removesuffix('*')}", "1"]}})
        assert message.startswith("spec.engine.decode.args[0]: ")


@pytest.mark.parametrize(
    ("shared", "own", "merged"),
    [
        ([("A", "1"), ("B", "$(A)")], [("A", "2")], [("A", "2"), ("B", "$(A)")]),
        ([("A", "1")], [("B", "$(A)")], [("A", "1"), ("B", "$(A)")]),
        ([("A", "1"), ("B", "2")], [("X", "9"), ("A", "$(X)")], [("X", "9"), ("A", "$(X)"), ("B", "2")]),
        ([("A", "1"), ("B", "2")], [("A", "$(B)")], [("B", "2"), ("A", "$(B)")]),
        ([("B", "$(X)/b"), ("C", "1")], [("X", "9")], [("X", "9"), ("B", "$(X)/b"), ("C", "1")]),
        ([("A", "1"), ("B", "2")], [("A", "$$(B)")], [("A", "$$(B)"), ("B", "2")]),
        ([("A", "$(B)"), ("B", "2")], [("X", "1")], [("A", "$(B)"), ("B", "2"), ("X", "1")]),
        ([("A", "1"), ("B", "2")], [("A", "$(B)"), ("B", "$(A)")], [("B", "$(A)"), ("A", "$(B)")]),
        ([("PATH", "/a")], [("PATH", "$(PATH):/b")], [("PATH", "$(PATH):/b")]),
    ],
)
def test_variables_are_merged_by_name_and_stand_after_what_they_refer_to(
    shared: list[tuple[str, str]], own: list[tuple[str, str]], merged: list[tuple[str, str]]
) -> None:
    found = merged_env(variables(*shared), variables(*own))
    assert [(item.name, item.value) for item in found] == merged


@st.composite
def two_lists(draw: st.DrawFn) -> tuple[list[EnvVar], list[EnvVar]]:
    """Return the variables of both roles and of one, in any order; none refers to itself, by whatever way."""
    names = draw(st.permutations("ABCDEF"))

    def some() -> list[EnvVar]:
        chosen = draw(st.lists(st.sampled_from(names), unique=True))
        return [EnvVar(name=name, value=value(names.index(name))) for name in chosen]

    def value(rank: int) -> str:
        return "".join(f"$({name})" for name in names[:rank] if draw(st.booleans()))

    return some(), some()


def referred(item: EnvVar) -> list[str]:
    return re.findall(r"\$\((.)\)", item.value)


@given(two_lists())
@settings(max_examples=300)
def test_every_reference_that_can_be_resolved_is(lists: tuple[list[EnvVar], list[EnvVar]]) -> None:
    shared, own = lists
    merged = merged_env(shared, own)
    values = {item.name: item for item in (*shared, *own)}
    assert {item.name: item for item in merged} == values
    assert len(merged) == len(values)
    at = {item.name: number for number, item in enumerate(merged)}
    before = {item.name: number for number, item in enumerate(shared)}
    mine = {item.name for item in own}
    for item in merged:
        for name in referred(item):
            was = item.name in before and name in before and before[name] < before[item.name]
            if name in at and (was or item.name in mine or name in mine):
                assert at[name] < at[item.name], (item, merged)
    if not own:
        assert merged == shared
