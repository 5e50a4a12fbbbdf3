"""The reasons of the condition Planned."""

from collections.abc import Mapping
from types import MappingProxyType

from weft_operator.status.reasons.reason import Reason

PLANNED: Mapping[str, Reason] = MappingProxyType(
    {
        "PlanReady": Reason(
            "The plan in `status.plan` was made for this spec, or stays because of `planning.mode: Off`."
        ),
        "Planning": Reason(
            "The planner is at work; workers of the last plan keep running.",
            cause="The spec changed, or the service is new.",
        ),
        "Replanned": Reason(
            "The active plan was made for the observed traffic; the message says what had drifted. A changed "
            "`spec.workload` leads to a plan for the spec again.",
            cause="The traffic or the SLO drifted, and a better plan was found.",
        ),
        "Replanning": Reason(
            "Traffic or SLO drifted and the planner is at work; the active plan stays until it answers.",
            cause="Arrivals, lengths or rounds left the plan's range of validity, or the error budget burns too fast.",
        ),
        "AwaitingApproval": Reason(
            "`status.proposedPlan` has another plan, which is not rolled out before it is approved; Planned is False "
            "if the spec changed, True if traffic or SLO drifted.",
            "`weft approve NAME` shows its diff and writes its hash into the annotation weft.dev/approve.",
            cause="`planning.mode: Manual`, and the spec changed or traffic or SLO drifted.",
        ),
        "ReplanProposed": Reason(
            "`status.proposedPlan` has another plan, and `planning.mode: Advisory` applies none.",
            "Set mode Manual and approve it, or Auto.",
            cause="`planning.mode: Advisory`, and the spec changed or traffic or SLO drifted.",
        ),
        "ApprovalStale": Reason(
            "The annotation weft.dev/approve names a hash that is not that of the proposal; nothing was changed.",
            "Read `status.proposedPlan` and approve its hash, or remove the annotation.",
            cause="The proposal was replaced in the meantime, or the hash was copied wrongly.",
        ),
        "RolledBack": Reason(
            "An older plan is active again and is held until the spec changes or the traffic leaves the range of "
            "validity of the plan that it replaced.",
            "After a requested rollback, `weft rollout resume NAME` ends the hold at once. After a failed canary, "
            "`weft rollout undo NAME --to-revision N` rolls out that plan without a canary. "
            "`weft rollout history NAME` lists both.",
            "`weft rollout undo` (annotation weft.dev/rollback-to), or a canary that failed.",
        ),
        "RollbackRevisionNotFound": Reason(
            "The annotation weft.dev/rollback-to names a revision that does not exist; nothing was changed.",
            "Choose a number of `weft rollout history NAME`, or remove the annotation.",
            "The number is wrong, its revision is older than `planning.revisionHistoryLimit` keeps, or the plan has "
            "another number since it was active again.",
        ),
        "RollbackRefused": Reason(
            "The plan that the annotation weft.dev/rollback-to names cannot run for the current spec; nothing changed.",
            "See the message: choose another revision, or change the spec back first.",
            "The model, the engine, the pools, their degrees, the bounds or the budget changed since.",
        ),
        "Cooldown": Reason(
            "Traffic or SLO drifted shortly after the plan changed; the planner is asked after `planning.cooldown`.",
            cause="The plan, or the decision that none is better, is younger than `planning.cooldown`.",
        ),
        "NoBetterPlan": Reason(
            "Traffic or SLO drifted, but no plan is better by `planning.minImprovement`; the planner is asked again "
            "after the cooldown if the drift persists.",
            "Where the SLO is missed, more GPUs, more degrees or a wider SLO help; see the message.",
            cause="The active plan is the best one for this traffic too, or nearly so.",
        ),
        "MetricsUnavailable": Reason(
            "Metrics are missing, so the active plan stays.",
            "See the condition MetricsAvailable.",
            cause="Prometheus does not answer, or its data is old, incomplete or contradicts itself.",
        ),
        "SessionsDoNotFit": Reason(
            "A smaller plan would be enough, but the live sessions or the waiting prompts do not fit into it.",
            "Wait until sessions end; the planner is asked again after the cooldown.",
            cause="Sessions hold more KV, or more prompts wait, than the smaller plan has room for.",
        ),
        "ScaleDownStabilized": Reason(
            "A plan with fewer GPUs would be enough; it waits until the SLO was met for `planning.drift.shrinkAfter`.",
            cause="The load fell a short while ago, or the SLO was missed since.",
        ),
        "ScheduleDeferred": Reason(
            "Another of `planning.schedules` is active, and its plan with fewer GPUs is deferred: the current load "
            "does not fit into it.",
            "Wait until the traffic falls; if metrics are missing, see MetricsAvailable.",
            cause="The traffic or the live sessions' KV exceed the smaller plan, or there are no metrics.",
        ),
        "ScaleToZeroBlocked": Reason(
            "There are no requests and `planning.scaleToZero` is set, but the workers stay; the message says why.",
            "Give the service a Prometheus, let operator and routers reach the same Redis, or remove `scaleToZero`.",
            cause="No Prometheus is configured, or Redis has no heartbeat of a ready worker.",
        ),
        "ReplanFailed": Reason(
            "Traffic or SLO drifted, and the planner has no plan for the observed traffic; it is asked again after the "
            "cooldown.",
            "See the message; limits of `spec.planning` and `spec.capacity` may exclude such a plan.",
            cause="The budget, the bounds or the free nodes do not allow a plan for the observed traffic.",
        ),
        "InvalidSpec": Reason(
            "The stored spec breaks a rule of this operator's version, or is too large to be stored with its plan.",
            "Correct the field that the message names.",
            cause="The object was stored before this rule existed, or with an older CRD; the API server does not check "
            "the size of a spec.",
        ),
        "ProtectedField": Reason(
            meaning="A patch of `spec.podTemplates` changes a field by which workers pair, drain, stay closed or are "
            "counted, or asks for more of the node or of Weft's programs than the allow-list has. Or weights are "
            "cached elsewhere on nodes than below `/var/lib/weft`.",
            remedy="Remove the field that the message names, or use what it says instead; docs/pod-templates.md lists "
            "all. Where the message names a permission, a cluster administrator can add it to the chart's "
            "`operator.podTemplates.allow`.",
            cause="The patch was made before the field was protected, for a pod that Weft does not run, or for a "
            "cluster with that permission.",
        ),
        "ProfileNotFound": Reason(
            "`spec.profile.ref` names a CostProfile that is not in the namespace.",
            "Create it, correct the name, or remove the reference.",
            cause="It was not applied yet, is in another namespace, or has another name.",
        ),
        "ProfileInvalid": Reason(
            "The cost profile has a figure that cannot be used.",
            "Correct the field that the message names.",
            cause="It was edited by hand, or measured by another version.",
        ),
        "TraceNotFound": Reason(
            "`spec.workload.traceConfigMap` names a ConfigMap or key that does not exist.",
            "Create the ConfigMap with that key, or correct the reference.",
            cause="It was not applied yet, or the key in it has another name.",
        ),
        "RoutingTableNotFound": Reason(
            "`spec.routing.tableConfigMapRef` names a ConfigMap or key that does not exist.",
            "Create the ConfigMap with that key (`weft ppd learn`), or correct the reference.",
            cause="It was not applied yet, or the key in it has another name.",
        ),
        "RoutingTableInvalid": Reason(
            "The table that `spec.routing.tableConfigMapRef` names has a figure that cannot be used, or lacks one.",
            "Correct the figure that the message names, or learn the table again (`weft ppd learn`).",
            cause="It was edited by hand, or written by another version.",
        ),
        "SecretNotFound": Reason(
            "`spec.coordinator.auth.apiKeySecretRef`, `spec.coordinator.tls.secretRef`, "
            "`spec.model.source.huggingFace.tokenSecretRef`, `spec.model.source.s3.credentialsSecretRef` or a patch of "
            "`spec.podTemplates` names a Secret or key that does not exist.",
            "Create the Secret with that key, or correct the reference.",
            cause="It was not created yet, is in another namespace, or its key is empty.",
        ),
        "SecretNotAllowed": Reason(
            "The spec, or a patch of `spec.podTemplates`, names a Secret that is not marked for this use: whoever may "
            "create services need not be one who may read Secrets.",
            "Somebody who may change the Secret adds the label that the message gives (`kubectl label secret`), or "
            "makes it of type `weft.dev/credentials`.",
            cause="The Secret was made without the label, or for another use.",
        ),
        "JwksNotFound": Reason(
            "`spec.coordinator.auth.jwt.jwksConfigMapRef` names a ConfigMap or key that does not exist.",
            "Create the ConfigMap with that key, or correct the reference.",
            cause="It was not created yet, or the key in it has another name.",
        ),
        "TooFewGpus": Reason(
            "The budget or the nodes hold fewer GPUs than the smallest layout or `spec.capacity.gpus` needs.",
            "Lower the number to what the message gives, add nodes, or set `spec.capacity.elastic` where an "
            "autoscaler adds them.",
            cause="Nodes are missing, cordoned, not ready or tainted, or the budget was lowered.",
        ),
        "ModelDoesNotFit": Reason(
            "The weights fit on no allowed degree, or the model's heads do not split over any.",
            "Allow the degree that the message names, or use larger GPUs.",
            cause="The model is too large for the pools' GPUs at the allowed degrees, or a degree does not divide its "
            "heads.",
        ),
        "ContextDoesNotFit": Reason(
            "No allowed degree holds the KV cache of one context of `spec.model.maxModelLen`.",
            "Lower maxModelLen or allow a larger degree.",
            cause="Weights leave too little memory for one context of that length.",
        ),
        "NoPoolForRole": Reason(
            "No pool may hold one of the roles.",
            "Add the role to a pool.",
            cause="`spec.capacity.pools[].roles` leaves a role out.",
        ),
        "BoundsUnsatisfiable": Reason(
            "No layout has as many workers as `spec.planning` asks for.",
            "Lower a min or raise a max.",
            cause="`spec.planning.prefill`, `decode` and `ratio` contradict each other or the GPUs.",
        ),
        "NotPlaceable": Reason(
            "No layout fits onto the free GPUs of the nodes, because a worker needs its GPUs on one, or whole nodes; "
            "retried with backoff where free GPUs of nodes are known.",
            "Free or add what the message says, correct gpusPerNode, or allow smaller degrees.",
            cause="Free GPUs are spread over more nodes than one worker can use.",
        ),
        "NoPairOfDegrees": Reason(
            "The engine cannot exchange KV between any of the pools' prefill and decode degrees; the message names the "
            "pairs and the rule.",
            "Allow the degrees that the message names.",
            cause="Prefill and decode pools have degrees that the engine's KV transfer cannot join, or "
            "`spec.planning.degreePairs` leaves out those of the pools.",
        ),
        "OverBudget": Reason(
            "`spec.planning.budgetPerHour` does not pay for the smallest layout.",
            "Raise it to what the message says, or allow smaller degrees or cheaper pools.",
            cause="The budget was lowered, or prices rose, below what the smallest layout costs.",
        ),
        "UnknownModel": Reason(
            "Without a CostProfile, costs need the dimensions of the model, and this one is not in the catalogue.",
            "Correct the name, give the model's config.json in `spec.model.config`, or reference a measured profile.",
            cause="The model is newer than the catalogue, or its name is misspelt.",
        ),
        "ModelConfigInvalid": Reason(
            "`spec.model.config` is not a config.json that the planner can read.",
            "Correct the fields that the message names, or reference a measured profile.",
            cause="It is of a family that the planner does not know, or fields are missing.",
        ),
        "UnknownGpu": Reason(
            "Without a CostProfile, costs need the data sheet of the GPU, and this type is not in the catalogue.",
            "Use a gpuType of the API reference, or reference a measured profile.",
            cause="The GPU is newer than the catalogue, or its name is misspelt.",
        ),
        "SpeculationUnsupported": Reason(
            "The model cannot be decoded speculatively as `spec.engine.speculative` asks.",
            "Choose another method, or give the config.json that the message asks for in `spec.model.config`.",
            cause="The checkpoint has no next-token-prediction layers, or the engine cannot hand the draft's KV over.",
        ),
        "MixedGpuTypes": Reason(
            "The spec has one profile, and the pools have GPUs of several types.",
            "Keep the pools of one type, or give a profile for each (`spec.profile.refs`).",
            cause="A pool of another type was added to a service with one profile.",
        ),
        "NoFeasibleLayout": Reason(
            "No layout of `spec.planning.layouts` keeps the limits.",
            "Allow another layout, or change the limit that the message names.",
            cause="Only layouts are allowed that the other limits exclude.",
        ),
        "Infeasible": Reason(
            "No layout meets the constraints.", "See the message.", cause="Limits contradict each other."
        ),
        "PlannerTimeout": Reason(
            "The planner did not answer within the deadline and was killed; it is retried with backoff.",
            "Raise the chart's operator.plannerDeadlineSeconds, or narrow degrees and bounds.",
            cause="Many pools, degrees and GPUs make many layouts, or the operator has too little CPU.",
        ),
        "PlannerCrashed": Reason(
            "The planner ended without an answer; it is retried with backoff.",
            "See the message and the operator's log; more memory for the operator helps when it was killed.",
            cause="It was killed for lack of memory, or has a bug.",
        ),
    }
)
