"""The example of docs/examples on a cluster of this machine: applied, waited for, and removed."""

import json
from collections.abc import Sequence

from weft_e2e.checks import check_ready
from weft_e2e.engines.environment import EngineEnv
from weft_e2e.engines.pods import ask_again_soon, example, keep_pods_on_their_cores, keeping_on_cores
from weft_e2e.kube import Kube
from weft_e2e.service import Service, component_of
from weft_e2e.waiting import until

ROLES = ("prefill", "decode")
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"


def apply_example(
    kube: Kube, env: EngineEnv, *, image: str, nodes: Sequence[str], namespace: str, proof_s: float | None = None
) -> Service:
    """Apply the example in a namespace of its own, under the restricted Pod Security standard.

    Its volume is called like the namespace. ``proof_s`` is how often paths are proven, the default where None.
    """
    kube.kubectl("create", "namespace", namespace)
    kube.kubectl("label", "namespace", namespace, RESTRICTED)
    objects = example(env, image=image, nodes=nodes, volume=namespace)
    if proof_s is not None:
        objects[-1]["spec"]["engine"]["kvTransfer"]["proofSeconds"] = proof_s
    for item in objects:
        kube.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(item))
    return Service(kube, namespace, objects[-1]["metadata"]["name"])


def remove_example(kube: Kube, namespace: str, *, wait: bool = False) -> None:
    """Remove it with its volume, if it is there."""
    waits = f"--wait={str(wait).lower()}"
    kube.kubectl("delete", "namespace", namespace, "--ignore-not-found", waits, timeout=180)
    kube.kubectl("delete", "persistentvolume", namespace, "--ignore-not-found", waits, timeout=60)


def wait_ready(service: Service, *, timeout_s: float) -> dict[str, str]:
    """Wait until it is Ready, its engines kept on their cores meanwhile; return role to pod name.

    Raises:
        WaitedTooLong: its pods did not come in time.
        CheckFailed: they did not get ready in time, or a container was restarted.
    """
    until(lambda: _prepared(service), what="pods of both roles", timeout_s=timeout_s)
    with keeping_on_cores(pods_of(service, *ROLES)):
        check_ready(service, timeout_s=timeout_s)
    names = {component_of(pod): str(pod["metadata"]["name"]) for pod in service.pods() if component_of(pod) in ROLES}
    keep_pods_on_their_cores(list(names.values()))
    return names


def _prepared(service: Service) -> bool:
    """Prepare the engines' pods as soon as both are there, before any of their connections is."""
    names = pods_of(service, *ROLES)
    if len(names) < len(ROLES):
        return False
    try:
        for name in names:
            ask_again_soon(name)
    except LookupError:
        return False
    return True


def pods_of(service: Service, *components: str) -> list[str]:
    """Return the names of a service's pods of these components that are there."""
    return [str(pod["metadata"]["name"]) for pod in service.pods() if component_of(pod) in components]
