"""The difference between what is and what should be."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_operator.api.objects import Manifest, key_of
from weft_operator.kube.diff import Apply, Delete, diff, first_difference, stamped


def config(name: str, **data: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "ns"}, "data": data}


def live(body: Manifest, **metadata: Any) -> Manifest:
    found = stamped(copy.deepcopy(body))
    found["metadata"] |= {"uid": f"uid-{found['metadata']['name']}", "resourceVersion": "7", **metadata}
    return found


def run(desired: list[Manifest], found: list[Manifest], keep: set[Any] | None = None) -> tuple[Any, ...]:
    return diff(desired, found, prunable=("ConfigMap",), keep=keep or set())


def test_nothing_to_do_when_all_is_there() -> None:
    assert run([config("a", x="1")], [live(config("a", x="1"))]) == ()


def test_a_missing_object_is_applied_as_fresh() -> None:
    (action,) = run([config("a")], [])
    assert isinstance(action, Apply)
    assert (action.reason, action.fresh, action.key.name) == ("missing", True, "a")


def test_a_changed_object_is_applied() -> None:
    (action,) = run([config("a", x="2")], [live(config("a", x="1"))])
    assert isinstance(action, Apply)
    assert (action.reason, action.fresh) == ("changed", False)


def test_a_hand_edit_is_put_back_and_named() -> None:
    edited = live(config("a", x="1"))
    edited["data"]["x"] = "9"
    (action,) = run([config("a", x="1")], [edited])
    assert action.reason == "drifted: data.x"


def test_what_others_add_is_theirs() -> None:
    found = live(config("a", x="1"))
    found["data"]["y"] = "2"
    found["metadata"]["labels"] = {"team": "blue"}
    assert run([config("a", x="1")], [found]) == ()


def test_what_is_not_wanted_is_deleted_by_uid() -> None:
    (action,) = run([], [live(config("a"))])
    assert isinstance(action, Delete)
    assert (action.key.name, action.uid) == ("a", "uid-a")


def test_what_is_in_use_or_of_another_kind_or_going_is_left() -> None:
    kept = live(config("a"))
    going = live(config("b"), deletionTimestamp="2026-01-01T00:00:00Z")
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "ns", "uid": "u"}}
    assert run([config("b")], [kept, going, service], {key_of(kept)}) == ()


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"cpu": "1000m"}, {"cpu": "1"}),
        ({"memory": "1Gi"}, {"memory": "1024Mi"}),
        ({"a": {}}, {}),
        ({"a": None}, {}),
        ([{"name": "x", "v": 1}], [{"name": "mesh"}, {"name": "x", "v": 1, "default": True}]),
        ([{"key": "a"}], [{"key": "b"}, {"key": "a", "operator": "Equal"}]),
    ],
)
def test_the_same_in_other_words(wanted: Any, found: Any) -> None:
    assert first_difference(wanted, found) is None


@pytest.mark.parametrize(
    ("wanted", "found", "path"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "a.b"),
        ({"cpu": "1"}, {"cpu": "2"}, "cpu"),
        ({"args": ["a", "b"]}, {"args": ["b", "a"]}, "args"),
        ({"args": ["a"]}, {"args": ["a", "b"]}, "args"),
        ({"c": [{"name": "x", "image": "1"}]}, {"c": [{"name": "x", "image": "2"}]}, "c[x].image"),
        ({"c": [{"name": "x"}]}, {"c": []}, "c[x]"),
        ({"flag": True}, {"flag": False}, "flag"),
        ({"flag": True}, {}, "flag"),
        ({"a": {"b": 1}}, {}, "a"),
    ],
)
def test_differences_are_named(wanted: Any, found: Any, path: str) -> None:
    assert first_difference(wanted, found) == path


@given(
    tenths=st.integers(1, 10**6),
    unit=st.sampled_from(["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"]),
)
def test_amounts_are_the_same_in_the_api_servers_words(tenths: int, unit: str) -> None:
    """The API server stores a fraction of a unit in the largest suffix that needs none: 1.4Gi as 1503238553600m."""
    factor = 1024 ** " KMGT".index(unit[0]) if unit.endswith("i") else 1000 ** " kMGT".index(unit or " ")
    written = f"{tenths // 10}.{tenths % 10}{unit}"
    thousandths = tenths * 100 * factor
    for stored in (f"{thousandths}m", f"{thousandths * 1000}u", f"{thousandths * 10**6}n", f"{thousandths}e-3"):
        assert first_difference({"memory": written}, {"memory": stored}) is None
    for other in (f"{thousandths + 1}m", f"{thousandths * 10**6 - 1}n"):
        assert first_difference({"memory": written}, {"memory": other}) == "memory"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab1", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=300)
@given(value=JSON)
def test_everything_holds_itself(value: Any) -> None:
    assert first_difference(value, copy.deepcopy(value)) is None


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.text("xy", max_size=2)), max_size=4, unique_by=lambda t: t[0]))
def test_applied_once_there_is_nothing_left_to_do(rows: list[tuple[str, str]]) -> None:
    wanted = [config(name, value=value) for name, value in rows]
    applied = [live(action.manifest) for action in run(wanted, []) if isinstance(action, Apply)]
    # What was applied carries the hash of what was wanted.
    for item, body in zip(applied, wanted, strict=True):
        item["metadata"]["annotations"] = stamped(body)["metadata"]["annotations"]
    assert run(wanted, applied) == ()
