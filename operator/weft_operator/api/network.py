"""Who may reach a service's pods, where the cluster's network plug-in enforces policies."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from weft_operator.api.base import ApiModel, Rule

_LABELS = Annotated[dict[str, Annotated[str, StringConstraints(max_length=63)]], Field(max_length=8)]
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


class NetworkPolicies(ApiModel):
    """Who may reach a service's pods. KV moves between prefill and decode workers only, and engines answer nobody."""

    enabled: bool = True
    """Whether the operator makes NetworkPolicies; they need a network plug-in that enforces them."""
    clients_from: Peers | None = None
    """Who may send requests to the coordinator; everyone if absent."""
    workers_from: Peers = []
    """Who may reach the sidecars of workers beside the coordinator, other workers and Prometheus."""
    metrics_from: Peers = []
    """Who may scrape metrics beside the Prometheus that the operator was told of."""
