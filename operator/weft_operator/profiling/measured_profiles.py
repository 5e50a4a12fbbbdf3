"""The measured profiles that replace the one of a spec. Pure."""

from collections.abc import Mapping
from typing import Any

from weft_operator.api.cost_profile import profile_name
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.kube.observe import Observed
from weft_operator.profiling.results import taken
from weft_operator.profiling.targets import gpu_types, identity, targets_of


def measured_profiles(spec: DisaggInferenceServiceSpec, observed: Observed) -> Mapping[str, Mapping[str, Any]]:
    """Return the specs of measured CostProfiles by name, one for each GPU type; none before all degrees are measured.

    A choice between measured and assumed degrees would be biased.
    """
    if spec.profile.measure is None:
        return {}
    targets, service = targets_of(spec), observed.service["metadata"]["name"]
    found: dict[str, Mapping[str, Any]] = {}
    for gpu in gpu_types(spec):
        name = profile_name(service, gpu)
        profile = observed.named("CostProfile", name)
        there = taken(profile, identity(spec, gpu))
        wanted = {target.degree for target in targets if target.gpu == gpu}
        if profile is None or not wanted or not wanted <= there.keys():
            return {}
        found[name] = profile.get("spec") or {}
    return found
