"""Each class has its policy, and a new configuration takes over between two requests."""

import pytest

from weft_core.policies.snapshot import Circumstances, DecodeWorkerView, PrefillTask, PrefillWorkerView
from weft_core.profile_json import profile_from_json
from weft_router.config import RouterConfig
from weft_router.routing.class_policies import ClassPolicies, slicing_of
from weft_router.workers.prefill_queue import queue_rule
from weft_router_tests.stack import PROFILE, router_json

COSTS = profile_from_json(PROFILE)
HERE = DecodeWorkerView("d0", 1, 0.0, 0, windowed_itl=None, kv_used=0, kv_capacity=1000, batch=2, context=100)


def config(**routing: object) -> RouterConfig:
    body = router_json()
    body["routing"] = routing
    body["qos"] = {
        "classes": {"batch": {"localOnly": "always"}, "gold": {"priority": 2, "earlyRejection": True}},
        "tenants": {"acme": {"weight": 3}},
    }
    return RouterConfig.model_validate(body)


def policies(made: RouterConfig, *, before: ClassPolicies | None = None, sliceable: bool = True) -> ClassPolicies:
    return ClassPolicies(made, profile=COSTS, salt="d0", sliceable=sliceable, before=before, clock=lambda: 1.0)


def reasons(of: ClassPolicies) -> dict[str, str]:
    found = {}
    for name in ("default", "batch", "gold", "gone"):
        decision = of.of(name).route(
            PrefillTask(0, 100), decode=HERE, prefill=[PrefillWorkerView("a", 1, 0.0, 0, None)], known=Circumstances()
        )
        found[name] = decision.reason
    return found


def test_classes_differ_and_an_unknown_one_is_plain() -> None:
    made = config(policy="remote-jsq", classes={"gold": {"policy": "always-local"}})
    assert reasons(policies(made)) == {
        "default": "shortest-finish", "batch": "degraded", "gold": "always-local", "gone": "shortest-finish",
    }  # fmt: skip


def test_a_new_configuration_takes_over_and_what_was_learned_stays() -> None:
    old = policies(config(policy="remote-jsq"))
    round_ = old.of("default")
    for _ in range(40):
        old.trust.note("remote", predicted=0.1, observed=9.0, now=1.0)
    new = policies(config(policy="weft"), before=old)
    assert not new.trusted
    assert reasons(new)["default"] == "predictions-wrong"
    assert round_.name == "remote-jsq", "a round keeps the policy that it began with"
    assert new.of("default").name == "weft"


def test_a_learned_table_goes_on_as_long_as_the_configured_one_is_the_same() -> None:
    old = policies(config(policy="ppd"))
    learning = old.of("default").learning
    assert learning is not None
    learning.note(0, local=True, ttft_s=9.0)
    learning.note(0, local=False, ttft_s=1.0)
    same = policies(config(policy="ppd", binding="round-robin"), before=old)
    assert same.of("default").learning is learning
    other = policies(config(policy="ppd", params={"w_tpot": 3.0}), before=old).of("default").learning
    assert other is not None
    assert other is not learning
    assert policies(config(policy="weft"), before=old).of("default").learning is None


def test_slices_are_as_configured() -> None:
    slices = {"least": 64, "block": 128, "overheadSeconds": 0.01}
    made = config(policy="weft", mode="imd", sliceShare=0.7, slices=slices)
    found = slicing_of(made.routing)
    assert found is not None
    assert (found.share, found.least, found.block, found.overhead_s) == (0.7, 128, 128, 0.01)
    assert slicing_of(config(slices={"mode": "off"}).routing) is None
    assert policies(made, sliceable=False).of("default").next_slice(at=0, remaining=10_000, decode=HERE) is None
    assert policies(made).of("default").next_slice(at=0, remaining=10_000, decode=HERE) is not None


def test_the_queue_is_shared_between_tenants_where_there_are_any() -> None:
    rule = queue_rule(config(policy="weft", ageingCap=9))
    assert (rule.order, rule.cap, rule.shares) == ("moore-hodgson", 9, {"acme": 3.0})
    body = router_json()
    assert queue_rule(RouterConfig.model_validate(body)).shares is None


@pytest.mark.parametrize("name", ["default", "gold"])
def test_every_class_draws_its_own_dice(name: str) -> None:
    made = config(policy="fixed-x", params={"x": 0.5})
    views = (PrefillWorkerView("a", 1, 0.0, 0, None),)

    def drawn() -> list[bool]:
        rule = policies(made).of(name)
        known = Circumstances(later=True)
        return [
            rule.route(PrefillTask(9, 9), decode=HERE, prefill=views, known=known).remote is None for _ in range(64)
        ]

    assert drawn() == drawn()
    assert 10 < sum(drawn()) < 54
