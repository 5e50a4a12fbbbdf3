"""A service's costs are measured in real pods: engines of its own start, are timed, and say what they are."""

import pytest

from weft_core.profile_json import profile_from_json
from weft_e2e import kube
from weft_e2e.checks import check_ready
from weft_e2e.scenarios.installed import Installed
from weft_e2e.scenarios.manifests import changed, small_service
from weft_e2e.waiting import until
from weft_e2e_tests.test_service_cluster import applied
from weft_planner.profiling.measurements import GridCell
from weft_planner.profiling.validation import predict_cell

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]

MEASURED_S = 300.0
"""Two engines that start, a minute and a half of timing and a fit, on a machine that other tests are busy on, too."""
CELLS = (GridCell("prefill", 1, history=0, increment=512), GridCell("step", 1, batch=4, context=4 * 512))


def test_engines_of_its_own_are_timed_and_plans_are_made_with_what_they_told(weft: Installed, namespace: str) -> None:
    asked = {"analytic": {}, "measure": {"budget": "90s", "extraGpus": 2, "degrees": [1]}}
    # A slow engine: what other tests do to its timings is small beside it, and none is below what its GPU could do.
    body = changed(small_service("priced", time_scale=4.0), "spec.profile", asked)
    # Nor do they make an SLO that no plan reaches by the measured times.
    body = changed(body, "spec.slo", {"ttft": "10s", "itl": "500ms"})
    service = applied(weft, namespace, body)
    before = service.plan().inputs_hash

    def measured() -> bool:
        found = service.conditions().get("ProfileMeasured")
        assert found is None or found.status != "False", found
        return found is not None and found.true

    until(measured, what="a measured profile", timeout_s=MEASURED_S)
    (profile,) = kube.items(weft.kube, "costprofiles", namespace=namespace)
    figures = profile_from_json(profile["spec"])
    for cell in CELLS:
        seconds = predict_cell(figures, cell)
        assert seconds is not None
        assert 0 < seconds < 5, cell
    assert profile["spec"]["provenance"]
    ways = [row for row in profile["spec"]["transfers"] if row["link"] == "inter-node"]
    assert any("fit" in row for row in ways), "KV went from one pod to the other"
    until(
        lambda: (
            not [
                job
                for job in kube.items(weft.kube, "jobs", namespace=namespace)
                if "-reads-" in job["metadata"]["name"]
            ]
        ),
        what="the end of the engine that read",
        timeout_s=60,
    )
    until(
        lambda: service.plan().inputs_hash != before,
        what="a plan with the measured profile",
        timeout_s=120,
        last=lambda: str(service.conditions().get("Planned")),
    )
    check_ready(service, timeout_s=150)
