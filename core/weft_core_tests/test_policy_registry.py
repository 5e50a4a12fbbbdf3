"""Every policy's file is found, and what it declares holds together."""

from pathlib import Path
from typing import get_args

import pytest

from weft_core.policies import binding, order, qos, reasons, registry, routing
from weft_core.policies.policy import Parameter, PolicyError, RoutingPolicy
from weft_core.policies.registry import BINDINGS, MEANINGS, MODES, ORDERS, POLICIES, QOS, REASONS, parameters
from weft_core.policies.routing import weft


@pytest.mark.parametrize("package", [routing, binding, order, qos], ids=lambda package: package.__name__)
def test_a_policy_is_named_as_its_file(package: object) -> None:
    files = {path.stem for path in Path(str(package.__file__)).parent.glob("*.py")} - {"__init__"}  # type: ignore[attr-defined]
    policies = package.POLICIES  # type: ignore[attr-defined]
    assert {name.replace("-", "_") for name in policies} == files
    assert all(policy.summary and policy.source for policy in policies.values())


def test_the_names_of_the_types_are_those_of_the_files() -> None:
    assert get_args(registry.PolicyName) == tuple(POLICIES)
    assert get_args(registry.BindingName) == tuple(BINDINGS)
    assert get_args(registry.OrderName) == tuple(ORDERS)
    assert get_args(registry.ModeName) == tuple(MODES)


def test_every_reason_has_a_name_and_a_meaning() -> None:
    assert len(REASONS) < 1 << 8, "the simulator's answers have 8 bits for a reason"
    assert all(MEANINGS.values())
    with pytest.raises(ValueError, match="declared twice"):
        reasons.reason("table", "again")


def test_a_reasons_number_is_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasons, "_meanings", {})
    assert [reasons.reason(name, "…") for name in ("first", "second")] == [0, 1]
    assert list(reasons.meanings()) == ["first", "second"]


def test_the_functions_to_compile_are_those_that_rules_call() -> None:
    found = list(registry.compilable_functions())
    names = {function.__name__ for function in found}
    assert names >= {
        "route_weft",
        "stall_cost",
        "bind_kv_headroom",
        "next_moore_hodgson",
        "first_printed",
        "step_seconds",
    }
    assert not names & {"reason", "policies_in", "parameters"}, "what files import of declarations is not compiled"
    assert len(found) == len(set(found))
    assert {rule.route for rule in POLICIES.values()} <= set(found)
    assert {rule.bind for rule in BINDINGS.values()} | {rule.next_task for rule in ORDERS.values()} <= set(found)


@pytest.mark.parametrize("rule", POLICIES.values(), ids=lambda rule: rule.name)
def test_defaults_stand_where_the_rule_reads_them(rule: RoutingPolicy) -> None:
    assert rule.order in ORDERS
    assert parameters(rule.name) == rule.params
    names = [parameter.name for parameter in rule.parameters]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "parameter",
    [
        *(parameter for rule in POLICIES.values() for parameter in rule.parameters),
        *(parameter for rule in QOS.values() for parameter in rule.parameters),
    ],
    ids=lambda p: p.name,
)
def test_a_default_is_in_its_range(parameter: Parameter) -> None:
    assert parameter.check(parameter.default) == parameter.default
    assert parameter.unit
    assert parameter.meaning


def test_values_are_put_in_their_places() -> None:
    assert parameters("ampd", overrides={"beta": 0.5}) == (0.9, 0.5)
    assert parameters("weft", "ia")[weft.MODE] == weft.IA
    assert parameters("weft", overrides={"itl_statistic": 1})[weft.ITL_STATISTIC] == weft.P95


@pytest.mark.parametrize(
    ("policy", "mode", "overrides", "message"),
    [
        ("best", "imd", {}, "policy: 'best' is not one of always-local, always-remote, ampd"),
        ("weft", "fast", {}, "mode: 'fast' is not one of imd"),
        ("ampd", "imd", {"gamma": 1}, "params.gamma: ampd has no such parameter; it has alpha, beta"),
        ("weft", "imd", {"mode": 1}, "params.mode: weft has no such parameter; it has itl_statistic"),
        ("always-local", "imd", {"x": 1}, "params.x: always-local has no such parameter; it has none$"),
        ("fixed-x", "imd", {"x": 1.5}, "params.x: 1.5 is not between 0 and 1"),
        ("fixed-x", "imd", {"x": float("nan")}, "params.x: nan is not between 0 and 1"),
    ],
)
def test_what_does_not_exist_is_refused(policy: str, mode: str, overrides: dict[str, float], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        parameters(policy, mode, overrides)
