"""The rules of restricted-v2: a pod that keeps them passes, and each one that is broken is named."""

import copy
from typing import Any

import pytest

from weft_e2e.checks.failed import CheckFailed
from weft_e2e.checks.openshift import check_restricted_v2

GOOD: dict[str, Any] = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "initContainers": [
        {"name": "init", "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}
    ],
    "containers": [
        {"name": "one", "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}
    ],
    "volumes": [{"name": "tmp", "emptyDir": {}}],
}


def test_a_pod_that_asks_for_nothing_is_admitted() -> None:
    check_restricted_v2("pod", GOOD)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("hostNetwork",), True, "hostNetwork is set"),
        (("volumes", 0), {"name": "host", "hostPath": {"path": "/"}}, "volume host is of type hostPath"),
        (("securityContext", "fsGroup"), 65532, "fsGroup is fixed"),
        (("securityContext", "runAsUser"), 65532, "pod: securityContext.runAsUser is fixed"),
        (("containers", 0, "securityContext", "runAsUser"), 1, "one: securityContext.runAsUser is fixed"),
        (("securityContext", "runAsNonRoot"), False, "runAsNonRoot is false"),
        (("securityContext", "seccompProfile"), {"type": "Unconfined"}, "seccompProfile is not RuntimeDefault"),
        (("initContainers", 0, "securityContext", "allowPrivilegeEscalation"), True, "init: securityContext.allowPriv"),
        (("containers", 0, "securityContext", "capabilities"), {}, "capabilities.drop lacks ALL"),
        (
            ("containers", 0, "securityContext", "capabilities"),
            {"drop": ["ALL"], "add": ["IPC_LOCK"]},
            "capabilities.add has IPC_LOCK",
        ),
        (("containers", 0, "securityContext", "privileged"), True, "privileged is set"),
        (("containers", 0, "ports"), [{"containerPort": 80, "hostPort": 80}], "hostPort 80"),
    ],
)
def test_what_is_refused_is_named(path: tuple[str | int, ...], value: object, words: str) -> None:
    pod = copy.deepcopy(GOOD)
    at: Any = pod
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(CheckFailed, match=words):
        check_restricted_v2("pod", pod)
