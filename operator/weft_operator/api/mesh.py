"""The service mesh that a service's pods join."""

from typing import Literal

from weft_operator.api.base import ApiModel


class Mesh(ApiModel):
    """A mesh whose proxies are injected into the pods of coordinators and workers, and into no Job.

    Requests and the routers' own hops go through the proxies, with mutual TLS; KV between engines, metrics and probes
    go past them.
    """

    type: Literal["istio", "linkerd"]
    """Which mesh: Istio 1.25 or newer with sidecars, or Linkerd 2.19 or newer; both with native sidecars."""
    mtls: Literal["Permissive", "Strict"] = "Permissive"
    """Whether a connection to a router must come from the mesh. Permissive: what the mesh says otherwise. Strict:
    others are refused, but for clients of coordinators with a certificate of their own. Set it once the service has
    joined the mesh: pods without a proxy are refused, too."""


class Network(ApiModel):
    """How the pods are connected."""

    mesh: Mesh | None = None
    """The service mesh that they join; none if absent. A change restarts all pods, except for mtls in Istio."""
