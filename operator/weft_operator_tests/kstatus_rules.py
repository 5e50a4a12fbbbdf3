"""What deployment tools conclude from an object: the rules of kstatus for custom resources, in few lines.

Source: sigs.k8s.io/cli-utils, pkg/kstatus/status (``checkGenericProperties`` in generic.go and ``checkReadyCondition``
in core.go), which Flux's health checks and ``kapply`` go by.
"""

from typing import Any, Literal

Result = Literal["Current", "InProgress", "Failed", "Terminating"]


def kstatus(manifest: dict[str, Any]) -> Result:
    """Return the status that kstatus computes for a custom resource."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    observed = status.get("observedGeneration")
    if observed is not None and observed != metadata.get("generation"):
        return "InProgress"
    conditions = status.get("conditions") or ()
    for item in conditions:
        if item["type"] == "Reconciling" and item["status"] == "True":
            return "InProgress"
        if item["type"] == "Stalled" and item["status"] == "True":
            return "Failed"
    for item in conditions:
        if item["type"] == "Ready":
            return "Current" if item["status"] == "True" else "InProgress"
    return "Current"
