"""Replanning on a real cluster, with mock engines and a Prometheus that scrapes them: `make e2e-replan` plays all."""

import json
import os

import pytest

from weft_e2e.checks import check_ready
from weft_e2e.scenarios.installed import Installed
from weft_e2e.scenarios.replan_scenarios import APPROVAL, AUTO, BALANCE, BLIND, TRIGGER
from weft_e2e.scenarios.replanning import PROMISED_S, WINDOW_S, ReplanScenario, play
from weft_e2e.service import Service

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900, func_only=True)]

long = pytest.mark.skipif(not os.environ.get("WEFT_E2E_REPLAN"), reason="takes minutes: make e2e-replan")


@pytest.mark.parametrize(
    "scenario",
    [AUTO, *(pytest.param(one, marks=long) for one in (BALANCE, TRIGGER, APPROVAL, BLIND))],
    ids=lambda one: one.name,
)
def test_replanning(weft: Installed, namespace: str, scenario: ReplanScenario) -> None:
    if scenario is BLIND and weft.local is None:
        pytest.skip("packets are dropped on nodes of a local cluster only")
    weft.kube.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(scenario.manifest))
    service = Service(weft.kube, namespace, scenario.manifest["metadata"]["name"])
    check_ready(service, timeout_s=150)
    idle = os.getloadavg()[0] < (os.cpu_count() or 1)
    took = play(scenario, service, print)
    if scenario in (AUTO, BALANCE) and idle:
        assert took.get("switched", took["applied"]) <= WINDOW_S + PROMISED_S
