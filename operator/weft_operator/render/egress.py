"""Egress rules of the pods of a service. Pure.

A NetworkPolicy knows no host names. For a URL its port is opened to every address but those of metadata services and of
the machine itself; for the model hub and S3 the port of https to public addresses alone.
"""

from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_network
from urllib.parse import urlsplit

from weft_core.layouts import ROLES
from weft_operator.api.kv_cache import PEER_TO_PEER
from weft_operator.api.model_cache import cached_model
from weft_operator.api.objects import COMPONENT_LABEL, SERVICE_LABEL, WORKER_COMPONENTS, Manifest
from weft_operator.render.engines.container import ROUTER_PORT
from weft_operator.render.inputs import Rendering
from weft_operator.render.mesh import proxy_egress, proxy_ports
from weft_operator.render.router_container import COORDINATOR, MESH_PORT

_PORTS = {"http": 80, "https": 443, "redis": 6379, "rediss": 6379}
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_NAT64 = IPv6Network("64:ff9b::/96")
_METADATA_OR_HOST = (
    # Link-local with the metadata services of most clouds, this host, Azure's (168.63.129.16), Oracle's (192.0.0.192)
    # and Alibaba's (100.100.100.200).
    *("100.100.100.200/32", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "192.0.0.0/24"),
    *("::1/128", "fd00:ec2::/32", "fd20:ce::/32", "fe80::/10"),  # of AWS and of Google
)
_NOT_PUBLIC = (
    # These, and private and shared address space.
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16"),
    *("172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16", "::1/128", "fc00::/7", "fe80::/10"),
)


def _all_but(ranges: Iterable[str]) -> list[Manifest]:
    """Return the peers for all addresses except some ranges, also by NAT64."""
    networks = [ip_network(cidr) for cidr in ranges]
    four = [network for network in networks if isinstance(network, IPv4Network)]
    six = [network for network in networks if isinstance(network, IPv6Network)]
    base = int(_NAT64.network_address)
    six += [IPv6Network((base + int(network.network_address), 96 + network.prefixlen)) for network in four]
    families = (("0.0.0.0/0", four), ("::/0", six))
    return [{"ipBlock": {"cidr": cidr, "except": [str(item) for item in rest]}} for cidr, rest in families]


def worker_egress(rendering: Rendering) -> list[Manifest]:
    """Return the rules for engines with their sidecars: each other, and the weights unless a Job brings them."""
    cached = cached_model(rendering.spec.model)
    by_job = cached is not None and cached.cache.claim is not None
    loaded = [] if by_job else _weights(rendering)
    loaded += [rule for rule in _adapters(rendering) if rule not in loaded]
    stores = _stores(rendering)
    return [*_common(rendering), _own(rendering), *loaded, *stores, *proxy_egress(rendering), *_named(rendering)]


def coordinator_egress(rendering: Rendering) -> list[Manifest]:
    """Return the rules for coordinators: workers, the keys of tokens at a URL, and services that answer for them."""
    jwt = rendering.spec.coordinator.auth.jwt
    keys = [] if jwt is None or jwt.jwks_uri is None else [_port_of(jwt.jwks_uri)]
    pooling = rendering.spec.coordinator.pooling_url
    asked = [] if pooling is None else [_port_of(pooling)]
    named = [*proxy_egress(rendering), *_named(rendering)]
    return [*_common(rendering), _own(rendering), *_fallback(rendering), *keys, *asked, *named]


def weights_egress(rendering: Rendering) -> list[Manifest]:
    """Return the rules for Jobs that download weights."""
    return [_dns(rendering), *_redis(rendering), *_weights(rendering), *_named(rendering)]


def measured_egress(rendering: Rendering, among: Manifest) -> list[Manifest]:
    """Return the rules for profiling engines: ``among`` each other, and the weights."""
    return [_dns(rendering), {"ports": among["ports"], "to": among["from"]}, *_weights(rendering), *_named(rendering)]


def _common(rendering: Rendering) -> list[Manifest]:
    telemetry = rendering.spec.telemetry
    traces = None if telemetry is None else telemetry.otlp_endpoint
    return [_dns(rendering), *_redis(rendering), *([] if traces is None else [_port_of(traces)])]


def _dns(rendering: Rendering) -> Manifest:
    # The cluster's DNS may run anywhere, on nodes and at link-local addresses (NodeLocal DNSCache) too. Behind
    # OpenShift's Service its pods listen at 5353.
    ports = (53, 5353) if rendering.settings.openshift else (53,)
    return {"ports": [{"protocol": protocol, "port": port} for port in ports for protocol in ("UDP", "TCP")]}


def _own(rendering: Rendering) -> Manifest:
    """Return the rule for pods of the same service; at which ports they answer, their own policies say."""
    parts = {"key": COMPONENT_LABEL, "operator": "In", "values": [COORDINATOR, *WORKER_COMPONENTS]}
    labels = {"matchLabels": {SERVICE_LABEL: rendering.key.name}, "matchExpressions": [parts]}
    return {"to": [{"podSelector": labels}]}


def _fallback(rendering: Rendering) -> list[Manifest]:
    """Return the rule for the coordinators of the service that serves what this one refuses; they have no TLS."""
    qos = rendering.spec.routing.qos
    if qos is None or qos.fallback_service is None:
        return []
    labels = {SERVICE_LABEL: qos.fallback_service, COMPONENT_LABEL: COORDINATOR}
    ports = [ROUTER_PORT, MESH_PORT, *proxy_ports(rendering)] if rendering.mesh else [ROUTER_PORT]
    return [{**_tcp(ports), "to": [{"podSelector": {"matchLabels": labels}}]}]


def _redis(rendering: Rendering) -> list[Manifest]:
    settings = rendering.settings
    if urlsplit(settings.redis_url).scheme not in _PORTS:
        return []
    rule = _port_of(settings.redis_url)
    return [{**rule, "to": [dict(peer) for peer in settings.redis_peers]} if settings.redis_peers else rule]


def _weights(rendering: Rendering) -> list[Manifest]:
    """Return the rule for the model hub or the store of objects; none where weights are on a volume or in an image."""
    spec = rendering.spec
    source = spec.model.source
    if spec.engine.type == "mock" or (source is not None and source.hugging_face is None and source.s3 is None):
        return []
    given = None if source is None else (source.hugging_face or source.s3)
    if given is not None and given.endpoint is not None:
        return [_port_of(given.endpoint), *_proxies(rendering)]
    return [_public(), *_proxies(rendering)]


def _adapters(rendering: Rendering) -> list[Manifest]:
    """Return the rule for adapters of the model hub, or of the mirror of it that the model comes from."""
    spec = rendering.spec
    if spec.engine.type == "mock" or not any(one.source.hugging_face for one in spec.model.adapters or ()):
        return []
    hub = None if spec.model.source is None else spec.model.source.hugging_face
    mirror = None if hub is None else hub.endpoint
    return [_public() if mirror is None else _port_of(mirror), *_proxies(rendering)]


def _stores(rendering: Rendering) -> list[Manifest]:
    """Return the rules for the store of a KV cache tier. At which ports Mooncake's servers hand KV out, nobody says."""
    spec = rendering.spec
    remote = spec.kv_cache.remote if spec.kv_cache is not None and spec.engine.type != "mock" else None
    if remote is None:
        return []
    if remote.mooncake is None:
        return [] if remote.lmcache is None else _given_port(remote.lmcache.url)
    found = _given_port(f"//{remote.mooncake.master}")
    metadata = remote.mooncake.metadata_server
    return found if metadata == PEER_TO_PEER else [*found, _port_of(metadata)]


def _given_port(url: str) -> list[Manifest]:
    with suppress(ValueError):  # nobody can connect to a port above 65535
        port = urlsplit(url).port
        return [anywhere([port])] if port else []
    return []


def _public() -> Manifest:
    return {**_tcp([443]), "to": _all_but(_NOT_PUBLIC)}


def _proxies(rendering: Rendering) -> list[Manifest]:
    """Return the rule for the proxies by which engines and downloads go, at whatever address they are."""
    ports = set()
    for item in (item for role in ROLES for item in rendering.engine(role).env):
        if item.name.upper() in _PROXIES and item.value:
            with suppress(ValueError):  # what is no port helps nobody out
                parts = urlsplit(item.value if "//" in item.value else f"http://{item.value}")
                ports.add(parts.port or _PORTS.get(parts.scheme, 1080))
    return [anywhere(sorted(ports))] if ports else []


def _named(rendering: Rendering) -> list[Manifest]:
    found = rendering.spec.network_policy.egress
    return [rule.model_dump(mode="json", by_alias=True, exclude_none=True) for rule in found]


def _port_of(url: str) -> Manifest:
    try:
        port = urlsplit(url).port
    except ValueError:  # nobody can connect to it, so no rule need name it
        port = None
    return anywhere([port or _PORTS[url.partition(":")[0]]])


def anywhere(ports: Iterable[int]) -> Manifest:
    """Return the rule for ports at an address that is not known here, of a pod too.

    Pods are named besides: not every network plug-in counts them to a range of addresses.
    """
    return {**_tcp(ports), "to": [{"namespaceSelector": {}}, *_all_but(_METADATA_OR_HOST)]}


def _tcp(ports: Iterable[int]) -> Manifest:
    return {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
