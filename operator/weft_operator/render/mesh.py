"""What a service mesh must know of the pods: whom to inject, and which ports its proxies are to leave alone.

Only the routers' port is the mesh's. Engines move KV over ports that the kernel chooses, at the speed of the network;
probes and Prometheus ask the plain port of health and metrics, which needs no certificate.

Istio takes lists of single ports, and lists of what to exclude only where everything else is redirected
(https://istio.io/latest/docs/reference/config/annotations/). The ports of KV data are a range, so workers name what is
redirected instead. Linkerd takes ranges (https://linkerd.io/2/reference/proxy-configuration/).
"""

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from weft_core.layouts import ROLES
from weft_operator.api.objects import SERVICE_LABEL, WORKER_COMPONENTS, Manifest
from weft_operator.render.engines.adapters import kv_ports
from weft_operator.render.engines.container import DATA_PORTS, RENDEZVOUS_PORT, ROUTER_PORT
from weft_operator.render.engines.vllm import RPC_PORT
from weft_operator.render.inputs import Rendering
from weft_operator.render.router_container import COORDINATOR, TLS_PORT, main_port

PEER_AUTHENTICATION: Final = ("security.istio.io/v1", "PeerAuthentication")
LINKERD_INBOUND_PORT = 4143
"""Where Linkerd's proxies reach each other, whatever port their pods' containers listen at."""
_CONTROL_PLANES: dict[str, tuple[str, tuple[int, ...]]] = {
    "istio": ("istio-system", (15012,)),
    "linkerd": ("linkerd", (8080, 8086, 8090)),
}
"""Where proxies get certificates and configuration: the namespace by default, and the ports."""
_HOLD = '{"holdApplicationUntilProxyStarts": true}'


@dataclass(frozen=True, slots=True)
class Marks:
    """Labels and annotations of a pod."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


def mesh_marks(rendering: Rendering, component: str, *, nodes: int = 1) -> Marks:
    """Return what has the proxy injected into the pods of a component, of which a worker has one on each node."""
    match rendering.mesh:
        case "istio":
            return Marks({"sidecar.istio.io/inject": "true"}, _istio(rendering, component))
        case "linkerd":
            return Marks({}, {"linkerd.io/inject": "enabled", **_linkerd(rendering, component, nodes)})
        case _:
            return Marks()


def mesh_objects(rendering: Rendering) -> tuple[Manifest, ...]:
    """Return what has Istio refuse connections from outside of the mesh, where the spec says so.

    It applies to the ports that go through the proxies. For Linkerd it is an annotation of the pods.
    """
    if rendering.mesh != "istio" or not _is_strict(rendering):
        return ()
    api_version, kind = PEER_AUTHENTICATION
    encrypted = rendering.spec.coordinator.tls is not None
    return (
        {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": rendering.metadata(rendering.name(), "mesh"),
            "spec": {
                "selector": {"matchLabels": {SERVICE_LABEL: rendering.key.name}},
                "mtls": {"mode": "STRICT"},
                **({"portLevelMtls": {str(TLS_PORT): {"mode": "PERMISSIVE"}}} if encrypted else {}),
            },
        },
    )


def no_injection(rendering: Rendering) -> Marks:
    """Return what keeps a proxy out of Jobs, whatever their namespace asks for: they would not end beside it."""
    match rendering.mesh:
        case "istio":
            return Marks({"sidecar.istio.io/inject": "false"}, {})
        case "linkerd":
            return Marks({}, {"linkerd.io/inject": "disabled"})
        case _:
            return Marks()


def engine_spans(rendering: Rendering, *, nodes: int = 1) -> tuple[tuple[int, int], ...]:
    """Return the ports at which engines reach each other, as ranges: KV, and the nodes of one worker."""
    found: set[tuple[int, int]] = set()
    if rendering.record.paired:
        for role in ROLES:
            ports = kv_ports(rendering.spec, role)
            found |= {(port, port) for port in ports.single} | set(ports.spans)
    if nodes > 1:
        found |= {(RPC_PORT, RPC_PORT), (RENDEZVOUS_PORT, RENDEZVOUS_PORT), DATA_PORTS}
    return tuple(sorted(found))


def proxy_egress(rendering: Rendering) -> list[Manifest]:
    """Return the rule that lets proxies reach the control plane of their mesh."""
    if not rendering.mesh:
        return []
    namespace, ports = _CONTROL_PLANES[rendering.mesh]
    peer: Manifest = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    return [{"ports": [{"protocol": "TCP", "port": port} for port in ports], "to": [peer]}]


def proxy_ports(rendering: Rendering) -> tuple[int, ...]:
    """Return the ports at which peers reach a pod's proxy beside those of its containers."""
    return (LINKERD_INBOUND_PORT,) if rendering.mesh == "linkerd" else ()


def _is_strict(rendering: Rendering) -> bool:
    network = rendering.spec.network
    return network is not None and network.mesh is not None and network.mesh.mtls == "Strict"


def _istio(rendering: Rendering, component: str) -> dict[str, str]:
    mine = main_port(rendering, component)
    annotations = {
        "proxy.istio.io/config": _HOLD,
        "sidecar.istio.io/nativeSidecar": "true",
        # Probes and hooks ask a port that is not redirected.
        "sidecar.istio.io/rewriteAppHTTPProbers": "false",
        "traffic.sidecar.istio.io/includeInboundPorts": str(mine),
    }
    if component in WORKER_COMPONENTS:
        ports = sorted({mine, *_redis_port(rendering)})
        annotations["traffic.sidecar.istio.io/includeOutboundIPRanges"] = ""
        annotations["traffic.sidecar.istio.io/includeOutboundPorts"] = ",".join(map(str, ports))
    return annotations


def _linkerd(rendering: Rendering, component: str, nodes: int) -> dict[str, str]:
    annotations = {"config.beta.linkerd.io/proxy-enable-native-sidecar": "true"}
    inward = [(ROUTER_PORT, ROUTER_PORT)]
    if component in WORKER_COMPONENTS:
        spans = engine_spans(rendering, nodes=nodes)
        inward += spans
        if spans:
            annotations["config.linkerd.io/skip-outbound-ports"] = _text(spans)
    annotations["config.linkerd.io/skip-inbound-ports"] = _text(sorted(inward))
    if component in WORKER_COMPONENTS or rendering.spec.coordinator.tls is not None:
        annotations["config.linkerd.io/opaque-ports"] = str(main_port(rendering, component))
    if _is_strict(rendering) and not (component == COORDINATOR and rendering.spec.coordinator.tls is not None):
        annotations["config.linkerd.io/default-inbound-policy"] = "cluster-authenticated"
    return annotations


def _redis_port(rendering: Rendering) -> tuple[int, ...]:
    url = urlsplit(rendering.settings.redis_url)
    return () if url.scheme not in ("redis", "rediss") else (url.port or 6379,)


def _text(spans: tuple[tuple[int, int], ...] | list[tuple[int, int]]) -> str:
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
