"""The reasons of the conditions about a rollout: Ready, Progressing, Drained, Reconciling and Stalled."""

from collections.abc import Mapping
from types import MappingProxyType

from weft_operator.status.reasons.reason import Reason

STARTING_CAUSE = "Workers are starting, were lost, or cannot be scheduled."
REFUSED_CAUSE = "An admission webhook, a quota or a policy refused it."
REFUSED_REMEDY = "The message holds the server's answer."
NAME_REMEDY = "Rename the service, or remove the object that the message names."
ROLE_CAUSE = "The role is of an older chart, was changed by hand or by a policy, or is missing in this namespace."
KIND_MISSING = Reason(
    "The cluster lacks a kind that the spec needs: an HTTPRoute or InferencePool, Istio's PeerAuthentication, a gang "
    "scheduler's PodGroup, or NVIDIA's ComputeDomain.",
    "Install what the message names, or change the field that it names.",
    cause="`gateway`, `network.mesh.mtls`, `scheduling.gang` or `capacity.pools[].computeDomain` is set, and its "
    "CustomResourceDefinition is missing.",
)
"""Texts that the reasons of a service and of a worker group share."""

READY: Mapping[str, Reason] = MappingProxyType(
    {
        "Serving": Reason("The coordinator and every planned worker are ready, and endpoint pickers, if any."),
        "Degraded": Reason(
            "Requests are served, but not by all planned workers at the newest template.",
            "Wait while Progressing is True; else see the message for the workers that are missing.",
            cause=STARTING_CAUSE,
        ),
        "CoordinatorNotReady": Reason(
            "No coordinator pod is available.",
            "See `kubectl describe deployment NAME`, with the service's name.",
            cause="Its image cannot be pulled, its configuration is refused, or no node has room.",
        ),
        "EndpointPickerNotReady": Reason(
            "No endpoint picker is available. Requests to the service's own address are served; what the gateway does "
            "with others depends on `gateway.failureMode`, and the message says it.",
            "See `kubectl describe deployment NAME-picker`, with the service's name, and the log of its pods.",
            cause="The image cannot be pulled, the configuration is refused, no node has room, or the pods end.",
        ),
        "ModelNotReady": Reason(
            "No worker runs, because the weights are not downloaded yet.",
            "See the condition ModelReady.",
            cause="The service is new and its weights are being downloaded, or the download failed.",
        ),
        "NoPrefillWorker": Reason(
            "No prefill worker is ready.",
            "See the message, then the pods' events.",
            cause="The engine is loading its model, keeps ending, or found no node.",
        ),
        "NoDecodeWorker": Reason(
            "No decode worker is ready.",
            "See the message, then the pods' events.",
            cause="The engine is loading its model, keeps ending, or found no node.",
        ),
        "ScaledToZero": Reason(
            "No worker runs, because there are no requests (`planning.scaleToZero`). The coordinator accepts requests: "
            "the first one starts the plan's workers and waits for them, up to `scaleToZero.hold`.",
            cause="There was no request for `scaleToZero.after`, and no worker had a live round.",
        ),
        "DemandUnknown": Reason(
            "No worker runs, and the operator does not know whether requests wait for one.",
            "Repair Redis (the chart's `redis.*`); or remove `planning.scaleToZero`: then the workers start.",
            cause="Redis has not answered the operator for half a minute.",
        ),
        "NotPlanned": Reason(
            "There is no plan yet.", "See the condition Planned.", cause="The planner is at work, or refused the spec."
        ),
    }
)

PROGRESSING: Mapping[str, Reason] = MappingProxyType(
    {
        "UpToDate": Reason("Every object is in its desired state."),
        "RollingOut": Reason(
            "Workers, coordinators or endpoint pickers are starting or being replaced.",
            cause="The plan, the engine or the configuration changed.",
        ),
        "ReplacingWorkers": Reason(
            "Workers were lost (their node is gone, or a broken pod cannot be updated) and are being replaced.",
            cause="A node died, or a template that does not start was replaced.",
        ),
        "Unschedulable": Reason(
            "The scheduler finds no node for a worker.",
            "See the message: GPUs, RDMA devices, taints or labels are missing.",
            cause="Other pods took the GPUs, nodes went away, or taints and labels do not match the pool.",
        ),
        "RolloutAborted": Reason(
            "The workers of the new plan did not start in time, so the old plan is active again. The rollout is "
            "retried when the spec or the observed workload changes.",
            "See the message for the cause, fix it, then change the spec.",
            cause="A template that does not start, too few GPUs on the nodes, or limits that allow no step.",
        ),
        "CanaryRunning": Reason(
            "A canary of the new plan runs (`rollout.canary`): the message says which sessions go to it and when it is "
            "analyzed. `status.canary` shows it.",
            "Wait; `weft rollout promote NAME` or `abort NAME` ends it now.",
            cause="A plan with other workers came into force, and its workers are ready.",
        ),
        "CanaryFailed": Reason(
            "The new plan was worse on live sessions than predicted, or there were too few samples in time; the old "
            "plan is rolled out again. The message has the figures.",
            "Measure the cost profile again (`weft profile`) if it is too fast; see MetricsAvailable if there were no "
            "metrics. Another plan is rolled out when the spec or the traffic changes.",
            cause="A cost profile that is too fast, an engine that is slower than the one before, or missing metrics.",
        ),
        "WaitingForModel": Reason(
            "The weights that the spec requests are being downloaded. Workers start after that; until then those of "
            "the last plan, if any, keep running with the weights that they loaded.",
            "Wait; the condition ModelReady has the progress and problems.",
            cause="The service is new, or `spec.model.source` changed.",
        ),
        "ModelRefused": Reason(
            "The weights cannot be obtained as the spec says; workers of the last plan, if any, keep running.",
            "See the condition ModelReady.",
            cause="The cluster has no image volumes, or the claim that the spec names does not exist.",
        ),
        "WaitingForPlan": Reason(
            "There is no plan for the current spec yet; workers of the last plan keep running.",
            "See the condition Planned.",
            cause="The service is new, or its spec changed.",
        ),
        "WaitingForDeletion": Reason(
            "Objects of a deleted service of the same name still exist; new ones are created after they are gone.",
            "Wait; if one stays, check its `metadata.finalizers`, and whether the garbage collector runs.",
            cause="The service was deleted and created again, and an object of the old one is not deleted yet.",
        ),
        "NameTaken": Reason(
            "An object that Weft did not create has a name that the service needs.",
            NAME_REMEDY,
            cause="An object of this name existed before the service.",
        ),
        "ApplyFailed": Reason(
            "The API server refused an object; the operator retries.",
            REFUSED_REMEDY,
            cause=REFUSED_CAUSE,
        ),
        "KindMissing": KIND_MISSING,
        "RedisUserRefused": Reason(
            "Redis does not let the operator create a user for the service, and `redis.perServiceUsers: required` "
            "allows no other. Routers serve from memory, without Redis.",
            "Give the operator's Redis user the rights that [install.md](../install.md#redis) lists, or set "
            "`redis.perServiceUsers: auto`.",
            cause="A managed Redis without ACL commands, or an operator's user without the right to use them.",
        ),
        "RightMissing": Reason(
            "The operator lacks a right that it needs for this service; the message names verb, resource and "
            "namespace. Running workers stay, and other services are not affected. The operator retries every minute.",
            "Apply Weft's chart again (`helm upgrade`), with this namespace in `operator.watchNamespaces` if that is "
            "set; or add the right to the operator's role yourself.",
            cause=ROLE_CAUSE,
        ),
    }
)

DRAINED: Mapping[str, Reason] = MappingProxyType(
    {
        "NoWorkersDraining": Reason("No worker drains, and none was lost."),
        "Draining": Reason(
            "Workers that are removed take no new sessions: live rounds end, and idle sessions migrate or are "
            "prefilled again on other workers.",
            "Wait, up to `rollout.drainTimeout`: then streams continue on other workers. `weft sessions NAME` shows "
            "the remaining sessions.",
            cause="The plan has fewer or other workers, or a drain was requested (`weft drain`).",
        ),
        "WorkersLost": Reason(
            "Workers were lost without migrating their sessions, which are prefilled again on other workers.",
            "Check the nodes of the named pods; delete the pods of nodes that do not come back.",
            cause="A node does not answer, or a pod did not end in its grace period.",
        ),
        "NotPlanned": Reason("There is no plan yet.", "See the condition Planned.", cause="The service is new."),
    }
)

RECONCILING: Mapping[str, Reason] = MappingProxyType(
    {
        "Working": Reason("The planner is at work, or pods are changing; the message says which."),
        "Settled": Reason("Nothing is in progress."),
    }
)

STALLED: Mapping[str, Reason] = MappingProxyType(
    {
        "NotStalled": Reason("Nothing is blocked."),
        "SpecRefused": Reason(
            "There is no plan for the spec as it is; existing workers keep running.",
            "See the condition Planned.",
            cause="The planner refused the spec, or it refers to something that does not exist.",
        ),
        "ObjectRefused": Reason(
            "An object of the service cannot be created or read.",
            "See the condition Progressing.",
            cause="An admission webhook, a quota, a policy, another object's name or a missing right prevents it.",
        ),
    }
)
