"""Who may reach a service's pods, and whom they may, where the cluster's network plug-in enforces policies."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from weft_operator.api.base import ApiModel, Rule

_LABELS = Annotated[dict[str, Annotated[str, StringConstraints(max_length=63)]], Field(max_length=6)]
_CIDR = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$", max_length=43)]


class Labels(ApiModel):
    """Chooses by labels; without any, everything."""

    match_labels: _LABELS = {}
    """Labels with these values."""


class IpBlock(ApiModel):
    """Addresses, for clients outside of the cluster."""

    cidr: _CIDR
    """A range such as 10.0.0.0/8 or fd00::/8."""


class Peer(ApiModel):
    """Pods by their labels, pods of namespaces by theirs, or addresses; as in a NetworkPolicy."""

    namespace_selector: Labels | None = None
    """Namespaces; the service's own if absent."""
    pod_selector: Labels | None = None
    """Pods in those namespaces; all if absent."""
    ip_block: IpBlock | None = None
    """Addresses."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.ipBlock) != (has(self.namespaceSelector) || has(self.podSelector))",
            "spec.networkPolicy: an entry needs namespaceSelector, podSelector or both, or ipBlock alone; "
            "name one and remove the rest",
            lambda p: (p.ip_block is not None) != (p.namespace_selector is not None or p.pod_selector is not None),
        ),
    )


Peers = Annotated[list[Peer], Field(max_length=16)]


class EgressPort(ApiModel):
    """A port, or a range of them."""

    port: Annotated[int, Field(ge=1, le=65535)]
    """The port, or the first one."""
    end_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """The last port of a range."""
    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    """The protocol."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.endPort) || self.endPort >= self.port",
            "spec.networkPolicy.egress: endPort is below port; exchange them",
            lambda p: p.end_port is None or p.end_port >= p.port,
        ),
    )


class Egress(ApiModel):
    """Whom pods may connect to."""

    to: Annotated[list[Peer], Field(min_length=1, max_length=4)]
    """Pods, namespaces or addresses; {ipBlock: {cidr: 0.0.0.0/0}} is everything of IPv4."""
    ports: Annotated[list[EgressPort], Field(min_length=1, max_length=8)] | None = None
    """At these ports; at all if absent."""


class NetworkPolicies(ApiModel):
    """Who may reach a service's pods, and whom they may.

    KV moves between prefill and decode workers only, and engines answer nobody. Pods connect to each other, to DNS and
    to Redis, to where the weights come from and traces go to, and to what ``egress`` names.
    """

    enabled: bool = True
    """Whether the operator makes NetworkPolicies; they need a network plug-in that enforces them."""
    clients_from: Peers | None = None
    """Who may send requests to the coordinator; everyone if absent."""
    workers_from: Peers = []
    """Who may reach the sidecars of workers beside the coordinator, other workers and Prometheus."""
    metrics_from: Peers = []
    """Peers that may scrape metrics in addition to the operator's configured Prometheus."""
    restrict_egress: bool = True
    """Whether the policies say whom pods may connect to; false lets them connect to everything."""
    egress: Annotated[list[Egress], Field(max_length=8)] = []
    """Whom the pods may connect to besides: a proxy, a mirror of the model hub, what an engine's own arguments name."""
