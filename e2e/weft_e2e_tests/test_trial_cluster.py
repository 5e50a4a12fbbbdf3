"""New plans on trial on a real cluster, under live streams: `make e2e-replan` plays them."""

import json
import os
import time

import click
import pytest

from weft_e2e.checks import check_condition, check_no_failures, check_ready
from weft_e2e.scenarios.arriving import Arrivals, arriving
from weft_e2e.scenarios.installed import Installed
from weft_e2e.scenarios.trying import STEADY, decode_pods, slow_down, tried_service
from weft_e2e.service import Service
from weft_e2e.waiting import until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_REPLAN"), reason="takes minutes: make e2e-replan"),
]

PLANNED_S = 90.0
"""From another spec to ready workers for its trial: the planner computes for some seconds, and pods start."""
JUDGED_S = 240.0
"""From there to a verdict and to workers of one plan alone, where few rounds are seen at first."""


def test_a_good_plan_is_promoted_and_one_whose_engines_are_three_times_too_slow_is_undone(
    weft: Installed, namespace: str
) -> None:
    manifest = tried_service()
    weft.kube.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(manifest))
    service = Service(weft.kube, namespace, manifest["metadata"]["name"])
    check_ready(service, timeout_s=150)
    assert degrees(service) == {"1"}

    with (
        service.reachable(run=f"{time.time():.0f}-") as target,
        arriving(Arrivals(target)) as arrivals,
    ):
        arrivals.turn_to(STEADY)
        arrivals.wait_served(6, timeout_s=60)
        begun = time.monotonic()

        ask(service, "latency")
        tried_beside_each_other(service)
        check_ready(service, timeout_s=JUDGED_S)
        assert degrees(service) == {"2"}, "the good plan is carried out to its end"
        assert service.conditions()["Planned"].reason != "RolledBack"
        click.echo(
            f"{time.monotonic() - begun:6.1f} s  the good plan was promoted; {arrivals.served()} rounds were served"
        )

        kept = set(decode_pods(service))
        ask(service, "cost")
        slow_down(service, degree=1, factor=3.0, within_s=PLANNED_S)
        tried_beside_each_other(service)
        check_condition(service, "Planned", "True", {"RolledBack"}, timeout_s=JUDGED_S)
        check_ready(service, timeout_s=60)
        assert set(decode_pods(service)) == kept, "the workers of the plan before were there all the time"
        said = service.conditions()["Planned"].message
        assert "was tried" in said, said
        click.echo(f"{time.monotonic() - begun:6.1f} s  the bad plan was undone: {said}")
        arrivals.wait_served(6, timeout_s=60)
    check_no_failures(arrivals.records)
    click.echo(f"{len(arrivals.records)} rounds, none failed")


def ask(service: Service, objective: str) -> None:
    patch = json.dumps({"spec": {"planning": {"objective": objective}}})
    service.kube.kubectl("patch", "dis", service.name, "-n", service.namespace, "--type=merge", "-p", patch)


def degrees(service: Service) -> set[str]:
    return {degree for _, degree, _ in decode_pods(service).values()}


def tried_beside_each_other(service: Service) -> None:
    """Wait until half of the new sessions go to the new plan, while both plans have a ready decode worker."""
    check_condition(service, "Progressing", "True", {"CanaryRunning"}, timeout_s=PLANNED_S)
    until(
        lambda: {degree for _, degree, ready in decode_pods(service).values() if ready} == {"1", "2"},
        what="ready decode workers of both plans",
        timeout_s=PLANNED_S,
        last=lambda: str(decode_pods(service)),
    )
    assert service.object()["status"]["canary"]["percent"] == 50
