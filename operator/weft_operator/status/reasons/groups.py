"""The reasons of the conditions of a WorkerGroup."""

from collections.abc import Mapping
from types import MappingProxyType

from weft_operator.status.reasons.reason import Reason
from weft_operator.status.reasons.rollout import (
    KIND_MISSING,
    NAME_REMEDY,
    REFUSED_CAUSE,
    REFUSED_REMEDY,
    ROLE_CAUSE,
    STARTING_CAUSE,
)

GROUP_READY: Mapping[str, Reason] = MappingProxyType(
    {
        "AllReady": Reason("All requested workers serve with the newest template."),
        "NotReady": Reason(
            "Workers are missing, or serve with an older template; the message counts them and says why.",
            "Wait while Progressing is True; else see the message, then the pods' events.",
            cause=STARTING_CAUSE,
        ),
    }
)

GROUP_PROGRESSING: Mapping[str, Reason] = MappingProxyType(
    {
        "UpToDate": Reason("Every worker is in its desired state, and none drains."),
        "RollingOut": Reason(
            "Workers are starting or being replaced.", cause="The number or the template of its workers changed."
        ),
        "Draining": Reason(
            "Workers that are removed finish their rounds and migrate their sessions.",
            cause="Fewer workers are requested, or a drain was requested (`weft drain`).",
        ),
        "NameTaken": Reason(
            "A StatefulSet that Weft did not create has the name of a worker.",
            NAME_REMEDY,
            cause="An object of this name existed before the worker.",
        ),
        "ApplyFailed": Reason(
            "The API server refused a worker's StatefulSet; the operator retries.",
            REFUSED_REMEDY,
            cause=REFUSED_CAUSE,
        ),
        "KindMissing": KIND_MISSING,
        "RightMissing": Reason(
            "The operator lacks a right that it needs for a worker: the message names verb, resource and namespace.",
            "Apply Weft's chart again (`helm upgrade`), or give the right to the operator's role yourself.",
            cause=ROLE_CAUSE,
        ),
    }
)
