"""API types of group weft.dev: pydantic models that are the one source of the CRDs and of the reference pages."""

from weft_operator.api.cost_profile import CostProfileSpec
from weft_operator.api.service import (
    GROUP,
    KIND,
    PLURAL,
    VERSION,
    DisaggInferenceService,
    DisaggInferenceServiceSpec,
)

__all__ = [
    "GROUP",
    "KIND",
    "PLURAL",
    "VERSION",
    "CostProfileSpec",
    "DisaggInferenceService",
    "DisaggInferenceServiceSpec",
]
