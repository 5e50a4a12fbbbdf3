"""The simulator predicts what the live stack does on mock engines of the same cost profile.

The very sessions that are simulated are held with a stack of processes; P95 TTFT and mean ITL must agree within 15 %,
attainment within 5 points; under ``ampd``, which chooses at random, with the scatter of 40 simulated runs on top. A
part of it always runs; ``make test-agreement`` compares three loads under three policies, one load with whole local
prefills, with twice the rounds, and one load of a symmetric and a hybrid layout. Other work on the machine does no harm
until clients and engines are late by a tenth of a second: then what disagrees is measured once more, and where that
does not help by itself and at half the speed, so that delays weigh half as much.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from weft_e2e.agreement.comparison import Comparison
from weft_e2e.agreement.running import Study, run
from weft_e2e.agreement.scenario import SLOWER, default_scenario

FULL = "WEFT_AGREEMENT" in os.environ
LOADS: dict[str, tuple[float, ...]] = {"remote-jsq": (0.8,), "weft": (0.55,)}
if FULL:
    THREE = (0.8, 0.55, 0.3)
    LOADS = {"remote-jsq": THREE, "weft": THREE, "ampd": THREE, "weft/ia": (0.55,)}
ROUNDS = 160.0 if FULL else 80.0
BOTH = {"symmetric": (0, 0, 2), "hybrid": (1, 1, 1)}
"""Layouts in which some workers have both roles: how many prefill, how many decode, and how many do both."""
LOAD_OF_BOTH = 0.55
ALL = [(policy, load) for policy, loads in LOADS.items() for load in loads]

# Six minutes in full, one minute in part; a load may be measured three times on a machine that is far too busy.
pytestmark = [pytest.mark.component, pytest.mark.alone, pytest.mark.timeout(900 if FULL else 500)]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, float], Comparison]:
    """Run all loads and policies once."""
    found = run(Study(default_scenario(), LOADS, rounds=ROUNDS, seed=4), tmp_path_factory.mktemp("agreement"))
    return {(one.policy, one.load): one for one in found}


@pytest.mark.parametrize(("policy", "load"), ALL)
def test_simulator_and_live_stack_agree(
    compared: Mapping[tuple[str, float], Comparison], policy: str, load: float, tmp_path: Path
) -> None:
    one = compared[policy, load]
    if one.starved and one.disagreements:
        (one,) = run(Study(default_scenario(2 * SLOWER), {policy: (load,)}, rounds=ROUNDS, seed=4), tmp_path)
    assert one.rounds >= 0.7 * ROUNDS, "too few rounds say nothing about a P95"
    assert not one.disagreements, str(one)


@pytest.mark.skipif(not FULL, reason="takes a minute each: make test-agreement")
@pytest.mark.parametrize("kind", BOTH)
def test_workers_with_both_roles_do_as_simulated(kind: str, tmp_path: Path) -> None:
    loads = {"weft": (LOAD_OF_BOTH,)}
    for slow in (SLOWER, 2 * SLOWER):
        prefill, decode, both = BOTH[kind]
        scenario = replace(default_scenario(slow), prefill=prefill, decode=decode, both=both)
        assert scenario.layout.kind == kind
        folder = tmp_path / f"{slow:g}"
        folder.mkdir()
        (one,) = run(Study(scenario, loads, rounds=ROUNDS, seed=4), folder)
        if not (one.starved and one.disagreements):
            break
    assert not one.disagreements, str(one)
