"""The reasons of the condition ModelReady."""

from collections.abc import Mapping
from types import MappingProxyType

from weft_operator.status.reasons.reason import Reason

MODEL_READY: Mapping[str, Reason] = MappingProxyType(
    {
        "WeightsReady": Reason("The weights are downloaded, verified, and where the workers load them."),
        "ImageVolume": Reason("The weights are in an image, which nodes pull and mount."),
        "RemovingWeights": Reason(
            "The spec does not use cached weights any more; the cache is removed once no worker uses it.",
            cause="`spec.model.source` changed.",
        ),
        "Downloading": Reason(
            "The weights are being downloaded; the message has the progress. Interrupted downloads resume.",
            "Wait.",
            cause="The service is new, its source or revision changed, or a worker came to a node without them.",
        ),
        "FetchPending": Reason(
            "The download has not started: it waits for its claim, a node, an image, or a worker.",
            "See the message. A claim that stays Pending has no storage class that gives ReadWriteMany volumes: "
            "name one in `cache.claim.storageClassName`, or use `cache.node`.",
            cause="The claim has no volume yet, no node fits, or the folder of `cache.node.path` does not exist.",
        ),
        "FetchFailed": Reason(
            "The download failed. It is retried after five minutes, and resumes.",
            "See the message: it names the field or the volume to correct. Deleting the Job retries at once.",
            cause="The token or keys are refused, the revision does not exist, the volume is full or cannot be "
            "written, or the source does not answer.",
        ),
        "ClaimNotFound": Reason(
            "`cache.claim.existingClaim` names a claim that is not in the namespace.",
            "Create it or correct the name; or give `cache.claim.size` instead, and one is created.",
            cause="It was not created yet, or is in another namespace.",
        ),
        "ImageVolumesUnsupported": Reason(
            "`spec.model.source.oci` needs image volumes, and the API server drops them silently.",
            "Use Kubernetes 1.35 or newer, or set the feature gate ImageVolume on the API server and the kubelets "
            "(1.31 and newer), with containerd 2.1 or CRI-O 1.31 or newer; or take the weights from `huggingFace`, "
            "`s3` or `pvc`.",
            cause="The cluster is older than 1.35 and its feature gate ImageVolume is off.",
        ),
    }
)
