"""The local cluster on Debian's own kernel with control groups version 2 alone, in a virtual machine.

Two boots, without systemd and with it, and in each two places from which a user may start a cluster.
"""

import os
import signal

import pytest

from weft_e2e.vm import Report, boot
from weft_e2e_tests.cgroup2_guest import NODES

needs_vm = pytest.mark.skipif(not os.environ.get("WEFT_E2E_CGROUP2"), reason="emulates a machine: make e2e-cgroup2")
LIMIT_SECONDS = 2700.0

PLAIN, SYSTEMD = "/sbin/weft-init", "/lib/systemd/systemd"
# Where a cluster's group hangs, as the processes that start it see the hierarchy.
PARENTS = {"root": "", "container": "", "service": "", "scope": "system.slice/"}


@pytest.fixture(scope="module", params=[PLAIN, SYSTEMD], ids=["plain", "systemd"])
def reports(request: pytest.FixtureRequest) -> list[Report]:
    """Boot a machine once for all tests of its reports."""
    return boot("weft_e2e_tests.cgroup2_guest", init=request.param, limit_s=LIMIT_SECONDS, report=print)


def lives(reports: list[Report]) -> dict[str, dict[str, Report]]:
    """Return the steps of each place."""
    found: dict[str, dict[str, Report]] = {}
    for step in reports:
        if step["step"] == "machine":
            found[step["place"]] = steps = {}
        if step["step"] != "done":
            steps[step["step"]] = step
    return found


@needs_vm
@pytest.mark.cluster
@pytest.mark.timeout(LIMIT_SECONDS + 900, func_only=False)
def test_a_cluster_lives_and_leaves_nothing(reports: list[Report]) -> None:
    failed = [step for step in reports if step["step"] == "failed"]
    assert not failed, "\n".join([failed[0]["error"], *(f"{k}:\n{v}" for k, v in failed[0]["logs"].items())])
    assert reports[-1] == {"step": "done"}
    found = lives(reports)
    assert len(found) == 2
    for place, steps in found.items():
        assert steps["machine"]["versions"] == ["cgroup2"], place
        assert steps["nodes"]["ready"] == dict.fromkeys(("node-1", "node-2")[: NODES[place]], True), place
        (group,) = steps["nodes"]["groups"]
        assert group.startswith(PARENTS[place]), place

        limits = steps["limits"]
        assert limits["kernel"]["memory.max"] == [str(64 * 2**20)] * 2, place
        assert limits["kernel"]["cpu.max"] == ["25000 100000"] * 2, place
        # containerd may see the container's end before its cause, and then calls it an Error.
        assert limits["exit_code"] == 128 + signal.SIGKILL, place
        assert limits["reason"] in ("OOMKilled", "Error"), place

        if NODES[place] > 1:
            off = steps["power-off"]
            assert off["processes"] > 3, place
            assert (off["groups_left"], off["processes_left"]) == ([], []), place
            assert off["nodes"] == {"node-1": True, "node-2": False}, place

        down = steps["down"]
        assert down["processes"] > 8, place
        assert (down["left"], down["groups_left"], down["machine_untouched"]) == ([], [], True), place
        assert down["own"] == steps["machine"]["own"], place
