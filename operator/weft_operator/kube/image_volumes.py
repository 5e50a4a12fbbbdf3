"""Whether a cluster supports image volumes: checked by a dry run of a Job with one."""

import logging
import time

from weft_operator.api.objects import Manifest
from weft_operator.errors import ForbiddenError, InvalidError
from weft_operator.kube.client import KubeClient

RECHECK_S = 60.0
"""How long the lack of support is cached; support is cached forever."""

log = logging.getLogger(__name__)

REFUSAL = (
    "spec.model.source.oci: the API server of this cluster drops image volumes; use Kubernetes 1.35 or newer, or set "
    "the feature gate ImageVolume on it and on the kubelets, or take the weights from huggingFace, s3 or pvc"
)


class ImageVolumes:
    """Checks whether the API server supports image volumes."""

    def __init__(self, api: KubeClient) -> None:
        self._api = api
        self._supported = False
        self._check_at = 0.0

    def refusal(self, namespace: str, image: str) -> str:
        """Return why weights cannot come in an image, "" where they can.

        The dry run uses this image, because policies of the cluster may refuse others.

        Raises:
            ApiError: the API server did not answer, or the operator may not create Jobs.
        """
        if not self._supported and time.monotonic() >= self._check_at:
            try:
                answer = self._api.create(_probe(namespace, image), dry_run=True)
            except (InvalidError, ForbiddenError) as error:
                if isinstance(error, ForbiddenError) and error.right is not None:
                    raise
                # A quota or a policy of the namespace, which says nothing about image volumes.
                log.info("image_volumes_unknown", extra={"namespace": namespace, "error": str(error)})
                return ""
            volumes = answer["spec"]["template"]["spec"].get("volumes") or ()
            # Without the feature the volume is dropped silently, or is an empty folder.
            self._supported = any(volume.get("image") for volume in volumes)
            self._check_at = time.monotonic() + RECHECK_S
        return "" if self._supported else REFUSAL


def _probe(namespace: str, image: str) -> Manifest:
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    container = {
        "name": "probe",
        "image": image,
        "securityContext": security,
        "volumeMounts": [{"name": "model", "mountPath": "/models", "readOnly": True}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "weft-image-volume-probe", "namespace": namespace},
        "spec": {
            "suspend": True,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 65532,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [container],
                    "volumes": [{"name": "model", "image": {"reference": image}}],
                }
            },
        },
    }
