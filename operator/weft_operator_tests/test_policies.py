"""Policies of a service reach its routers as they were chosen, and the reference page has all of them."""

from typing import get_args

import pytest

from weft_core.policies.registry import BINDINGS, DEFAULT_MODE, MODES, ORDERS, POLICIES, QOS, REASONS
from weft_operator.api.policies import policies_page, settable
from weft_operator.api.routing import Routing
from weft_operator.commands.manifest_checks import service_messages
from weft_operator.render.router_config import live_json
from weft_operator_tests.samples import rendering
from weft_operator_tests.valid import changed, service
from weft_router.config import RoutingConfig


@pytest.mark.parametrize(
    "routing",
    [
        *({"policy": policy} for policy in POLICIES),
        *({"policy": "weft", "mode": mode} for mode in MODES),
        *({"binding": binding} for binding in BINDINGS),
        *({"order": order} for order in ORDERS),
        *({"policy": name, "params": {p.name: p.default for p in settable(rule) if p.name != "urgent_ttft"}}
          for name, rule in POLICIES.items()),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_accepted_at_apply_the_router_can_run(routing: dict[str, object]) -> None:
    body = changed(service(), "spec.routing", routing)
    if routing.get("policy") == "colocated":
        body = changed(body, "spec.planning.layouts", ["colocated"])
    assert service_messages(body) == []
    chosen = Routing.model_validate(routing)
    told = RoutingConfig.model_validate(live_json(rendering(body))["routing"])
    assert told.policy == chosen.policy
    assert told.binding == (chosen.binding or POLICIES[chosen.policy].binding)
    assert told.mode == (chosen.mode or DEFAULT_MODE)
    assert told.order == (chosen.order or POLICIES[chosen.policy].order)
    assert told.params == chosen.params
    assert told.ageing_cap == chosen.ageing_cap


def test_a_service_that_chooses_nothing_keeps_its_rendering() -> None:
    told = live_json(rendering())["routing"]
    assert not {"mode", "params", "binding", "order", "ageingCap"} & set(told)


def test_every_name_can_be_written() -> None:
    assert get_args(Routing.model_fields["policy"].annotation) == tuple(POLICIES)
    for field, names in (("binding", BINDINGS), ("order", ORDERS)):
        assert get_args(get_args(Routing.model_fields[field].annotation)[0]) == tuple(names)


def test_the_reference_page_has_every_rule_parameter_and_reason() -> None:
    page = policies_page()
    for name in (*POLICIES, *BINDINGS, *ORDERS, *QOS, *REASONS):
        assert f"`{name}`" in page
    for rule in POLICIES.values():
        for parameter in rule.parameters:
            assert f"| `{parameter.name}` |" in page
