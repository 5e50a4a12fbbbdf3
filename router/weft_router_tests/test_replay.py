"""The live router takes the decisions that the simulator took, from the same state: no difference."""

import pytest

from weft_core.policies.registry import BINDINGS, ORDERS, POLICIES
from weft_core.policies.slices import Slicing
from weft_planner.simulation.layout import PolicyChoice
from weft_router.context import COMPILED
from weft_router_tests import replay

pytest.importorskip("numba")
pytestmark = pytest.mark.skipif(COMPILED, reason="numba compiles the policies from byte code, which compiled ones lack")


def test_live_and_simulated_decisions_are_the_same() -> None:
    tally = replay.replay(100_000)
    assert tally.differences == []
    assert tally.total == 100_000
    policies = {what.split()[1].split("/")[0] for what in tally.taken if what.startswith("route")}
    assert policies == set(POLICIES)
    assert {what for what in tally.taken if "route weft/" in what} == {
        f"route weft/{mode}" for mode in ("imd", "whole-or-chunked", "ia", "remote-jsq")
    }
    assert {what.split()[1] for what in tally.taken if what.startswith("order")} == set(ORDERS)
    assert {what.split()[1] for what in tally.taken if what.startswith("bind")} == set(BINDINGS)


def test_a_router_that_decides_by_other_figures_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "Slicing", lambda **figures: Slicing(**{**figures, "share": 0.5}))
    monkeypatch.setattr(replay, "choices", lambda: [PolicyChoice(route="weft", mode="imd")])
    assert replay.replay(1500).differences
