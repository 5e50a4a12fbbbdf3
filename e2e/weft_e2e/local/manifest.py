"""Read a service's manifest as the API server and the planner would, and refuse what they would refuse."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft_operator.api.service import DisaggInferenceService
from weft_planner.cli.service import ServiceFlags, read_service


@dataclass(frozen=True, slots=True)
class Service:
    """A service: its object with the API's defaults, its manifest as written, and what the planner is asked."""

    object: DisaggInferenceService
    manifest: Mapping[str, Any]
    request: Mapping[str, Any]

    @property
    def spec(self) -> dict[str, Any]:
        """Return the spec in JSON form, defaults included."""
        return self.object.spec.model_dump(mode="json", by_alias=True, exclude_none=True)

    @property
    def arrival_rate(self) -> float:
        """Return how many sessions a second the plan is made for."""
        return float(self.request["workload"]["arrivalRate"])


def read(file: str, *, name: str | None, profiles: Sequence[str]) -> Service:
    """Return the service of a file.

    Raises:
        BadInputError: the file cannot be read or is refused; each line names file, field, value and fix.
    """
    flags = ServiceFlags(
        file=file, name=name, profiles=profiles, capacity=None, trace=None, gpus=None, arrival_rate=None, seed=None
    )
    found = read_service(flags, verb="local")
    return Service(
        object=DisaggInferenceService.model_validate(found.document),
        manifest=found.document,
        request=found.request.model_dump(mode="json", by_alias=True),
    )
