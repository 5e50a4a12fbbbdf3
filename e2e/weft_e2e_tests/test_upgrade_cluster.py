"""An operator of the next release comes and goes under live streams: `make e2e-replan` plays it.

What the next release brings that pods are made of is another router image; nobody has it, so a pod that took it would
never start.
"""

import os
import time
from collections.abc import Iterator

import click
import pytest

from weft_e2e.checks import check_no_failures, check_ready, check_unchanged
from weft_e2e.checks.drains import check_no_lost_sessions
from weft_e2e.checks.objects import child_specs
from weft_e2e.demo.settings import RELEASE, SYSTEM_NAMESPACE
from weft_e2e.scenarios.background import Background, background_sessions
from weft_e2e.scenarios.gateways import change_release, release_restored, release_revision
from weft_e2e.scenarios.installed import Installed
from weft_e2e.scenarios.manifests import small_service
from weft_e2e.service import Service
from weft_e2e.waiting import until
from weft_e2e_tests.test_service_cluster import SERVED_S, applied

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_REPLAN"), reason="takes minutes: make e2e-replan"),
]

NEXT = "localhost/weft-router:of-the-next-release"
LOOKED_S = 120.0
"""Until a new operator has taken the Lease and looked at every service."""


@pytest.fixture
def releases(weft: Installed) -> Iterator[Installed]:
    """Give a cluster whose release may be changed; it is as it was afterwards."""
    if weft.local is None:
        pytest.skip("the release of a cluster of your own is left as it is")
    with release_restored(weft.kube):
        yield weft


def test_operators_of_other_releases_restart_no_worker(releases: Installed, namespace: str) -> None:
    service = applied(releases, namespace, small_service("upgraded"))
    pods, children, was = restarts(service), child_specs(service), release_revision(releases.kube)
    with service.reachable(run=f"{time.time():.0f}-") as target:
        with background_sessions(Background(target, round_deadline_s=60)) as streams:
            streams.wait_served(8, timeout_s=SERVED_S)

            change_release(releases.kube, "--reset-then-reuse-values", "--set", f"router.image={NEXT}")
            looked(service, offered=NEXT)
            streams.wait_served(8, timeout_s=SERVED_S)

            releases.kube.helm("rollback", RELEASE, was, "-n", SYSTEM_NAMESPACE, "--wait", timeout=270)
            looked(service, offered=None)
            streams.wait_served(8, timeout_s=SERVED_S)
        check_ready(service, timeout_s=60)
    assert restarts(service) == pods
    check_unchanged(service, children)
    check_no_failures(streams.records)
    check_no_lost_sessions(streams.transcripts)
    click.echo(f"{len(streams.records)} rounds through two changes of the operator, none failed; no pod restarted")


def restarts(service: Service) -> dict[tuple[str, str], int]:
    """Return name and UID of every pod of a service, with how often its containers have restarted."""
    return {
        (pod["metadata"]["name"], pod["metadata"]["uid"]): sum(
            int(one.get("restartCount", 0))
            for field in ("initContainerStatuses", "containerStatuses")
            for one in pod["status"].get(field) or ()
        )
        for pod in service.pods()
    }


def looked(service: Service, *, offered: str | None) -> None:
    """Wait until the operator that brings this router, or the very one that runs (None), has looked at the service."""
    until(
        lambda: service.object()["status"]["router"].get("offered") == offered,
        what="a look of the new operator",
        timeout_s=LOOKED_S,
        last=lambda: str(service.object()["status"]["router"]),
    )
