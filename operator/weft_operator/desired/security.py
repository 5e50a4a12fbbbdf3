"""Security settings that every pod of a service has: those of Pod Security ``restricted``, and a read-only root."""

from weft_operator.manifest import Manifest

USER = 65532
"""The ``nonroot`` user of minimal images."""


def pod_security() -> Manifest:
    """Return the security context of a pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Manifest:
    """Return the security context of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
