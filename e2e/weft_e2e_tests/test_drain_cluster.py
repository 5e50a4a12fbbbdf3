"""A decode worker of real pods leaves under live streams: who holds least goes, and nobody notices."""

import os
import time
from dataclasses import replace

import click
import pytest

from weft_e2e.checks import check_no_failures, check_ready
from weft_e2e.checks.drains import check_no_lost_sessions
from weft_e2e.metrics import growth
from weft_e2e.replay.sessions import PlannedRound
from weft_e2e.scenarios.background import Background, background_sessions
from weft_e2e.scenarios.installed import Installed
from weft_e2e.scenarios.manifests import changed, small_service
from weft_e2e.waiting import until
from weft_e2e_tests.test_service_cluster import READY_S, SERVED_S, applied, patch
from weft_operator.api.objects import WORKER_LABEL

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_REPLAN"), reason="takes minutes: make e2e-replan"),
]

HEAVY = (PlannedRound(1500, 30, 0.0), *(PlannedRound(40, 30, 1.5) for _ in range(80)))
"""A session that outlives the test, with far more KV than a light one ever has."""
LIGHT = (PlannedRound(120, 60, 0.0), *(PlannedRound(40, 60, 0.2) for _ in range(9)))


def test_the_worker_of_least_value_leaves_under_live_streams_and_no_session_is_lost(
    weft: Installed, namespace: str
) -> None:
    manifest = changed(small_service("less", decode=(2, 2), time_scale=2.0), "spec.rollout.drainTimeout", "20s")
    manifest["spec"]["capacity"]["pools"][0]["degrees"] = [1]
    service = applied(weft, namespace, manifest)
    lowest, highest = sorted(pod["metadata"]["labels"][WORKER_LABEL] for pod in service.pods("decode"))
    with service.reachable(run=f"{time.time():.0f}-") as target:
        heavy = Background(target, lanes=4, rounds=HEAVY, round_deadline_s=60)
        light = Background(replace(target, run=f"{target.run}light-"), lanes=3, rounds=LIGHT, round_deadline_s=60)
        with background_sessions(heavy):
            heavy.wait_served(8, timeout_s=SERVED_S)
            # All long sessions move to the worker that a StatefulSet would take away first.
            before = service.worker_uids()
            weft.kube.kubectl("delete", "pod", f"{lowest}-0", "-n", namespace, "--wait=false")
            check_ready(service, timeout_s=READY_S, without={before[f"{lowest}-0"]})
            heavy.wait_served(8, timeout_s=SERVED_S)
            assert {transcript.records[-1].worker for transcript in heavy.transcripts} == {highest}
            with background_sessions(light):
                light.wait_served(6, timeout_s=SERVED_S)
                assert lowest in {record.worker for record in light.records}
                uids, pages = service.worker_uids(), service.metrics_pages()
                patch(service, manifest, "spec.planning.decode", {"min": 1, "max": 1})
                until(
                    lambda: f"{lowest}-0" not in service.worker_uids(),
                    what=f"the end of {lowest}",
                    timeout_s=READY_S,
                    last=lambda: str(service.worker_uids()),
                )
                assert service.worker_uids() == {name: uid for name, uid in uids.items() if name != f"{lowest}-0"}
                check_ready(service, timeout_s=READY_S)
                light.wait_served(6, timeout_s=SERVED_S)
                heavy.wait_served(8, timeout_s=SERVED_S)
        moved = growth(pages, service.metrics_pages()).total("weft_router_sessions_moved_total")
    check_no_failures([*heavy.records, *light.records])
    check_no_lost_sessions([*heavy.transcripts, *light.transcripts])
    assert moved, "live sessions were taken over"
    click.echo(f"{len(heavy.records) + len(light.records)} rounds, none failed; {moved:.0f} sessions moved")
