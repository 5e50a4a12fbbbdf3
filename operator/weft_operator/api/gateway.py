"""How a gateway of the Gateway API reaches a service."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.fields import DnsLabel, ObjectName

HOSTNAME_PATTERN = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

Hostname = Annotated[str, StringConstraints(pattern=HOSTNAME_PATTERN, min_length=1, max_length=253)]


class ParentRef(ApiModel):
    """A Gateway whose listeners accept requests for the service."""

    name: ObjectName
    """Name of the Gateway."""
    namespace: DnsLabel | None = None
    """Its namespace; the service's own if absent. Its listeners must admit routes of the service's namespace."""
    section_name: ObjectName | None = None
    """One of its listeners; all if absent."""


class Gateway(ApiModel):
    """A route of the Gateway API to the service; the cluster needs its CRDs and an implementation."""

    parent_refs: Annotated[list[ParentRef], Field(min_length=1, max_length=3)]
    """The Gateways that the route is attached to."""
    hostnames: Annotated[list[Hostname], Field(min_length=1, max_length=4)] | None = None
    """Hosts that requests name; those of the listeners if absent."""
    mode: Literal["coordinator", "endpointPicker"] = "coordinator"
    """Where the route leads. coordinator: to the coordinator's Service. endpointPicker: to an InferencePool of the
    service's workers. An endpoint picker then chooses the worker of each request, and the gateway sends it there; this
    needs a gateway with the Inference Extension."""
    failure_mode: Literal["FailClose", "FailOpen"] = "FailClose"
    """What becomes of requests while no endpoint picker answers. FailClose: the gateway refuses them. FailOpen: it
    sends them to any worker, which passes them on to the coordinator."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.failureMode == 'FailClose' || self.mode == 'endpointPicker'",
            "spec.gateway.failureMode: FailOpen is for endpoint pickers; set mode to endpointPicker, or remove it",
            lambda g: g.failure_mode == "FailClose" or g.mode == "endpointPicker",
        ),
    )
