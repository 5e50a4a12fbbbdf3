"""The reasons of the conditions that say how far a plan is carried out.

They are Ready, Progressing, Drained, Reconciling and Stalled.
"""

from collections.abc import Mapping
from types import MappingProxyType

from weft_operator.status.reasons.reason import Reason

READY: Mapping[str, Reason] = MappingProxyType(
    {
        "Serving": Reason("The coordinator and every planned worker are ready."),
        "Degraded": Reason(
            "Requests are served, but not by all planned workers at the newest template.",
            "Wait while Progressing is True; else see the message for the workers that are missing.",
            cause="Workers are starting, were lost, or cannot be scheduled.",
        ),
        "CoordinatorNotReady": Reason(
            "No coordinator pod is available.",
            "`kubectl describe deployment` of the service's name tells why.",
            cause="Its image cannot be pulled, its configuration is refused, or no node has room.",
        ),
        "ModelNotReady": Reason(
            "No worker runs, because the weights are not there yet.",
            "See the condition ModelReady.",
            cause="The service is new and its weights are being downloaded, or they cannot be.",
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
            "No worker runs, for nobody asks anything (`planning.scaleToZero`). The coordinator takes requests: the "
            "first one brings the plan's workers back and waits for them, up to `scaleToZero.hold`.",
            cause="No request was seen for `scaleToZero.after`, and no worker had a live round.",
        ),
        "DemandUnknown": Reason(
            "No worker runs, and the operator cannot tell whether requests wait for one.",
            "Bring Redis (the chart's `redis.*`) back; or remove `planning.scaleToZero`: then the workers come back.",
            cause="Redis does not answer the operator for half a minute.",
        ),
        "NotPlanned": Reason(
            "There is no plan yet.", "See the condition Planned.", cause="The planner is at work, or refused the spec."
        ),
    }
)

PROGRESSING: Mapping[str, Reason] = MappingProxyType(
    {
        "UpToDate": Reason("Every object is as the plan and the spec want it."),
        "RollingOut": Reason(
            "Workers or coordinators are starting or being replaced.",
            cause="The plan, the engine or the configuration changed.",
        ),
        "ReplacingWorkers": Reason(
            "Workers were lost (their node is gone, or a broken pod cannot be updated); new ones take their place.",
            cause="A node died, or a template that does not start was replaced.",
        ),
        "Unschedulable": Reason(
            "The scheduler finds no node for a worker.",
            "See the message: GPUs, RDMA devices, taints or labels are missing.",
            cause="Other pods took the GPUs, nodes went away, or taints and labels do not match the pool.",
        ),
        "RolloutAborted": Reason(
            "The workers of the new plan did not come up in time, so the plan before is in force. It is tried again "
            "when the spec or the observed workload changes.",
            "See the message for what kept them, mend it, then change the spec.",
            cause="A template that does not start, too few GPUs on the nodes, or no room for any step.",
        ),
        "CanaryRunning": Reason(
            "The new plan is on trial (`rollout.canary`): the message says which sessions go to it and when it is "
            "judged. `status.canary` shows it.",
            "Wait; `weft rollout promote NAME` or `abort NAME` ends it now.",
            cause="A plan with other workers came into force, and its workers are ready.",
        ),
        "CanaryFailed": Reason(
            "The new plan did worse on live sessions than predicted, or nothing could be told of it in time; the "
            "plan before is taken up again. The message says what was seen.",
            "Measure the cost profile again (`weft profile`) where it was too fast; see MetricsAvailable where "
            "nothing was seen. Another plan is tried when the spec or the traffic changes.",
            cause="A cost profile that is too fast, an engine that is slower than the one before, or missing metrics.",
        ),
        "WaitingForModel": Reason(
            "The weights that the spec asks for are being downloaded. Workers start when they are there; until then "
            "those of the last plan, if there are any, keep running with what they loaded.",
            "Wait; the condition ModelReady says how far it is, and what is in the way.",
            cause="The service is new, or `spec.model.source` changed.",
        ),
        "ModelRefused": Reason(
            "The weights that the spec asks for cannot be had as it says; workers of the last plan, if there are any, "
            "keep running.",
            "See the condition ModelReady.",
            cause="The cluster has no image volumes, or the claim that the spec names is not there.",
        ),
        "WaitingForPlan": Reason(
            "There is no plan for the current spec yet; workers of the last plan keep running.",
            "See the condition Planned.",
            cause="The service is new, or its spec changed.",
        ),
        "WaitingForDeletion": Reason(
            "Objects of a deleted service of the same name are still there; nothing is made before they are gone.",
            "Wait; where one stays, look at its `metadata.finalizers`, and whether the garbage collector runs.",
            cause="The service was deleted and made again, and something keeps an object of the old one.",
        ),
        "NameTaken": Reason(
            "An object that Weft did not make has a name that the service needs.",
            "Rename the service, or remove the object that the message names.",
            cause="An object of this name was there before the service.",
        ),
        "ApplyFailed": Reason(
            "The API server refused an object; it is tried again.",
            "The message holds the server's answer.",
            cause="An admission webhook, a quota or a policy refused it.",
        ),
        "KindMissing": Reason(
            "The cluster lacks a kind that the spec asks for: a gang scheduler's PodGroup, or NVIDIA's ComputeDomain.",
            "Install what the message names, or change the field that it names.",
            cause="`scheduling.gang` or `capacity.pools[].computeDomain` is set, and its CustomResourceDefinition is "
            "not there.",
        ),
        "RedisUserRefused": Reason(
            "Redis does not let the operator make a user for the service, and `redis.perServiceUsers: required` lets "
            "pods have no other. Routers serve from memory, without what Redis tells.",
            "Give the operator's Redis user the rights that [install.md](../install.md#redis) lists, or set "
            "`redis.perServiceUsers: auto`.",
            cause="A managed Redis without ACL commands, or a user of the operator that may not use them.",
        ),
        "RightMissing": Reason(
            "The operator lacks a right that it needs for this service; the message names verb, resource and "
            "namespace. What needs it is not done meanwhile, and what runs stays; other services go on. It is tried "
            "again every minute.",
            "Apply Weft's chart again (`helm upgrade`), with this namespace in `operator.watchNamespaces` if that "
            "lists some; or give the right to the operator's role yourself.",
            cause="The role is of an older chart, was changed by hand or by a policy, or is missing in this namespace.",
        ),
    }
)

DRAINED: Mapping[str, Reason] = MappingProxyType(
    {
        "NoWorkersDraining": Reason("No worker is leaving, and none was lost."),
        "Draining": Reason(
            "Workers that are to go take no new sessions: live rounds end, and idle sessions move or are prefilled "
            "anew elsewhere.",
            "Wait, up to `rollout.drainTimeout`: then every stream goes on elsewhere. `weft sessions NAME` shows what "
            "they still hold.",
            cause="The plan has fewer or other workers, or somebody asked a worker to go (`weft drain`).",
        ),
        "WorkersLost": Reason(
            "Workers were given up that could hand nothing over; their sessions are prefilled anew elsewhere.",
            "Look at the nodes of the pods that are named; remove the pods of nodes that are gone for good.",
            cause="A node does not answer any more, or a pod did not end in its time.",
        ),
        "NotPlanned": Reason("There is no plan yet.", "See the condition Planned.", cause="The service is new."),
    }
)

RECONCILING: Mapping[str, Reason] = MappingProxyType(
    {
        "Working": Reason("The planner is at work, or pods are on their way; the message says which."),
        "Settled": Reason("Nothing is under way."),
    }
)

STALLED: Mapping[str, Reason] = MappingProxyType(
    {
        "NotStalled": Reason("Nothing is in the way."),
        "SpecRefused": Reason(
            "There is no plan for the spec as it is; what ran before goes on running.",
            "See the condition Planned.",
            cause="The planner refused the spec, or it refers to something that is not there.",
        ),
        "ObjectRefused": Reason(
            "An object of the service cannot be made, or cannot be read.",
            "See the condition Progressing.",
            cause="An admission webhook, a quota, a policy, another object's name or a missing right is in the way.",
        ),
    }
)
