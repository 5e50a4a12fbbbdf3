"""Read a service's manifest as the API server and the planner would, and refuse what they would refuse."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weft_cli.errors import BadInputError
from weft_core.layouts import PlannedGroup, WorkerRole, kind_of
from weft_planner.cli.service import ServiceFlags, documents_of, read_service

if TYPE_CHECKING:  # the API's models take as long to load as the planner takes to be ready for a question
    from weft_operator.api.service import DisaggInferenceService


@dataclass(frozen=True, slots=True)
class ServiceManifest:
    """A service: its object with the API's defaults, its manifest as written, and what the planner is asked."""

    object: "DisaggInferenceService"
    manifest: Mapping[str, Any]
    request: Mapping[str, Any]

    def with_spec(self, spec: Mapping[str, Any]) -> "ServiceManifest":
        """Return the service with another spec; the planner is asked for the one that it had."""
        manifest = {**self.manifest, "spec": spec}
        return replace(self, manifest=manifest, object=type(self.object).model_validate(manifest))

    @property
    def spec(self) -> dict[str, Any]:
        """Return the spec in JSON form, defaults included."""
        return self.object.spec.model_dump(mode="json", by_alias=True, exclude_none=True)

    @property
    def arrival_rate(self) -> float:
        """Return how many sessions a second the plan is made for."""
        return float(self.request["workload"]["arrivalRate"])


def question(file: str, *, name: str | None, profiles: Sequence[str]) -> Mapping[str, Any] | None:
    """Return what the planner is to be asked if the manifest is right; None where ``read`` has to tell."""
    from weft_planner.request.error import RequestError
    from weft_planner.request.manifest import choose_service, request_from_service

    if file == "-":  # can be read only once
        return None
    try:
        documents = documents_of(file)
        given = [document for path in profiles for document in documents_of(path)]
        request = request_from_service(choose_service(documents, name), [*documents, *given])
    except (RequestError, BadInputError):
        return None
    return request.model_dump(mode="json", by_alias=True)


def for_engines(request: Mapping[str, Any], roles: Sequence[WorkerRole]) -> Mapping[str, Any]:
    """Return what the planner is asked where engines of these roles run already; none: it has the choice.

    A service that names no layouts gets a plan of the layout that they make.
    """
    if not roles or request["engine"].get("layouts") is not None:
        return request
    kind = kind_of(PlannedGroup(role, 1, 1, "") for role in roles)
    return {**request, "engine": {**request["engine"], "layouts": [kind]}}


def read(file: str, *, name: str | None, profiles: Sequence[str]) -> ServiceManifest:
    """Return the service of a file.

    Raises:
        BadInputError: the file cannot be read or is refused; each line names file, field, value and fix.
    """
    from weft_operator.api.service import DisaggInferenceService

    flags = ServiceFlags(
        file=file, name=name, profiles=profiles, capacity=None, trace=None, gpus=None, arrival_rate=None, seed=None
    )
    found = read_service(flags, command="local")
    return ServiceManifest(
        object=DisaggInferenceService.model_validate(found.document),
        manifest=found.document,
        request=found.request.model_dump(mode="json", by_alias=True),
    )
