"""Names, numbers and parameters of all rules agree with each other."""

from typing import get_args

import pytest

from weft_core.policies import catalogue, codes, reasons, weft
from weft_core.policies.catalogue import BINDINGS, MODES, ORDERS, POLICIES, QOS, REASONS, parameters
from weft_core.policies.parameter import Parameter, PolicyError


def test_the_names_are_those_of_the_type() -> None:
    assert tuple(POLICIES) == get_args(catalogue.PolicyName)
    assert tuple(MODES) == get_args(catalogue.ModeName)
    assert tuple(BINDINGS) == get_args(catalogue.BindingName)
    assert tuple(ORDERS) == get_args(catalogue.OrderName)


def test_the_numbers_are_kept_for_good() -> None:
    assert [rule.code for rule in POLICIES.values()] == list(range(11))
    assert [rule.code for rule in BINDINGS.values()] == list(range(5))
    assert [rule.code for rule in ORDERS.values()] == list(range(4))
    assert (codes.WEFT, codes.AMPD, codes.REMOTE_JSQ, codes.LATENCY_COST) == (0, 1, 2, 10)
    assert (MODES["imd"], MODES["whole-or-chunked"], MODES["ia"], MODES["remote-jsq"]) == (0, 1, 2, 3)


def test_every_reason_has_a_number_a_name_and_a_meaning() -> None:
    numbers = [value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, int)]
    assert sorted(numbers) == list(range(len(REASONS)))
    assert len(reasons.MEANINGS) == len(REASONS) == len(set(REASONS))


@pytest.mark.parametrize("rule", POLICIES.values(), ids=lambda rule: rule.name)
def test_defaults_stand_where_the_rule_reads_them(rule: catalogue.RoutingRule) -> None:
    if rule.parameters:
        assert rule.params == tuple(parameter.default for parameter in rule.parameters)
    assert rule.order in ORDERS
    assert rule.source
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
        ("best", "imd", {}, "policy: 'best' is not one of weft, ampd"),
        ("weft", "fast", {}, "mode: 'fast' is not one of imd"),
        ("ampd", "imd", {"gamma": 1}, "params.gamma: ampd has no such parameter; it has alpha, beta"),
        ("weft", "imd", {"mode": 1}, "params.mode: weft has no such parameter; it has itl_statistic"),
        ("always-local", "imd", {"x": 1}, "params.x: always-local has no such parameter; it has none"),
        ("fixed-x", "imd", {"x": 1.5}, "params.x: 1.5 is not between 0 and 1"),
        ("fixed-x", "imd", {"x": float("nan")}, "params.x: nan is not between 0 and 1"),
    ],
)
def test_what_does_not_exist_is_refused(policy: str, mode: str, overrides: dict[str, float], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        parameters(policy, mode, overrides)
