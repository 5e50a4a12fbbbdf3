"""Check in every pass whether the newest spec, and the one of the active plan, are permitted. Pure.

A permission can be withdrawn and a Secret can lose its label. The plan is stored in a ConfigMap, which others than the
operator may be able to write. Therefore both specs are checked by the same rules in every pass.
"""

from collections.abc import Collection
from typing import NamedTuple

from weft_operator.api.kv_cache import kv_disk_fault
from weft_operator.api.model_cache import node_path_fault
from weft_operator.api.secret_references import SecretReference, refusal
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.errors import StalledError
from weft_operator.kube.observe import Observed
from weft_operator.render.config_maps import read_record
from weft_operator.render.inputs import PlanRecord
from weft_operator.render.pod_templates.overrides import pod_template_fault, secrets_of


class ActivePlan(NamedTuple):
    """The active plan, None where there is none or it is not permitted; ``fault`` then says why."""

    record: PlanRecord | None
    fault: StalledError | None = None


def active_plan(observed: Observed, permitted: Collection[str]) -> ActivePlan:
    """Return the active plan if the spec that it was made from is still permitted.

    ``permitted`` are the permissions of the service's namespace beyond the allow-list of pod templates.
    """
    config = observed.named("ConfigMap", f"{observed.service['metadata']['name']}-plan")
    record = read_record(config) if config is not None else None
    if record is None:
        return ActivePlan(None)
    try:
        check_permitted(record.spec, observed, permitted, unmarked=observed.unmarked_in_active_plan)
    except StalledError as error:
        return ActivePlan(None, error)
    return ActivePlan(record)


def check_permitted(
    spec: DisaggInferenceServiceSpec,
    observed: Observed,
    permitted: Collection[str],
    *,
    unmarked: Collection[SecretReference],
) -> None:
    """Refuse a spec that its author is not permitted to run; ``unmarked`` are its references to unlabelled Secrets.

    A missing Secret of a patch is refused, too: the kubelet would mount whichever Secret gets its name later.

    Raises:
        StalledError: ProtectedField, SecretNotAllowed or SecretNotFound, naming the field.
    """
    fault = (
        pod_template_fault(spec, permitted)
        or node_path_fault(spec.model, permitted)
        or kv_disk_fault(spec.kv_cache, permitted)
    )
    if fault is not None:
        raise StalledError("ProtectedField", fault)
    namespace = observed.service["metadata"]["namespace"]
    for reference in unmarked:
        raise StalledError("SecretNotAllowed", refusal(reference, namespace))
    for field, name in secrets_of(spec) if "secrets" not in permitted else ():
        known = observed.patched_secrets.get(name, "missing")
        if known == "missing":
            raise StalledError(
                "SecretNotFound",
                f"{field}: there is no Secret {name} in namespace {namespace}; create it or correct it",
            )
        if known == "unmarked":
            raise StalledError("SecretNotAllowed", refusal(SecretReference(field, name, "pods"), namespace))
