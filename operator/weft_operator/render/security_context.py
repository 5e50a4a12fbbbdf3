"""Security settings that every pod of a service has: those of Pod Security ``restricted``, and a read-only root.

No pod has a fixed user or group: Weft's images name a numeric user and work with any other one, so OpenShift's
``restricted-v2`` can assign its own. Engines' images run as root by default, which ``runAsNonRoot`` refuses; where
nothing assigns a user, their container gets one.
"""

from weft_operator.api.engine import Engine
from weft_operator.api.objects import Manifest

USER = 65532
"""The ``nonroot`` user of minimal images."""

READABLE = 0o444
"""Mode of files from a Secret: only containers that mount it see them, whichever user they run as."""


def pod_security() -> Manifest:
    """Return the security context of a pod."""
    return {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def container_security(user: int | None = None) -> Manifest:
    """Return the security context of a container; without ``user`` it runs as its image or the platform says."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        **({} if user is None else {"runAsUser": user}),
    }


def engine_user(engine: Engine, *, openshift: bool) -> int | None:
    """Return the fixed user of the engine's container, None where its image or the platform chooses one."""
    if engine.run_as_user is not None:
        return engine.run_as_user
    return None if engine.type == "mock" or openshift else USER
