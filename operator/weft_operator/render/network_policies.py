"""NetworkPolicies: clients reach the coordinator, the coordinator reaches sidecars, and workers' engines each other.

Where roles can change, workers of all components have one policy, because a role moves from one pod to another. It
covers the service's groups from before, too, which must reach the new ones while they are replaced.

Whom pods may connect to is in weft_operator.render.egress.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from weft_core.layouts import ROLES, Role
from weft_operator.api.network import Peer
from weft_operator.api.objects import (
    COMPONENT_LABEL,
    PICKER_COMPONENT,
    PROFILE_COMPONENT,
    SERVICE_LABEL,
    WEIGHTS_COMPONENT,
    WORKER_COMPONENT,
    WORKER_COMPONENTS,
    Manifest,
)
from weft_operator.render.egress import coordinator_egress, measured_egress, weights_egress, worker_egress
from weft_operator.render.engines.adapters import kv_ports
from weft_operator.render.engines.container import ENGINE_PORT, ROUTER_PORT
from weft_operator.render.inputs import Rendering
from weft_operator.render.mesh import proxy_ports
from weft_operator.render.router_container import COORDINATOR, GRPC_PORT, main_port


def network_policies(rendering: Rendering) -> tuple[Manifest, ...]:
    """Return the policies of each component, in and out; none where the service wants none."""
    if not rendering.spec.network_policy.enabled:
        return ()
    among = _among_measured(rendering)
    return (
        *_policies(rendering, COORDINATOR, _to_coordinator(rendering), coordinator_egress(rendering)),
        *(
            _policies(rendering, PICKER_COMPONENT, _to_picker(rendering), coordinator_egress(rendering))
            if rendering.picked
            else ()
        ),
        *(
            policy
            for component in rendering.worker_components
            for policy in _policies(rendering, component, _to_workers(rendering, component), worker_egress(rendering))
        ),
        *(
            _policies(rendering, PROFILE_COMPONENT, [among], measured_egress(rendering, among))
            if rendering.spec.profile.measure
            else ()
        ),
        *weights_policies(rendering),
    )


def weights_policies(rendering: Rendering) -> tuple[Manifest, ...]:
    """Return the policies for the Jobs that download weights onto a claim, where there is such a claim."""
    cache = rendering.spec.model.source.cache if rendering.spec.model.source is not None else None
    if not rendering.spec.network_policy.enabled or cache is None or cache.claim is None:
        return ()
    return _policies(rendering, WEIGHTS_COMPONENT, [], weights_egress(rendering))


def _policies(
    rendering: Rendering, component: str, ingress: list[Manifest], egress: list[Manifest]
) -> tuple[Manifest, ...]:
    """Return a component's ingress and egress policies.

    One policy of both would do by the API. kube-router, though, lets its rules of egress admit what another pod of the
    same policy sends to a port that its rules of ingress close.
    """
    inward = _policy(rendering, component, component, "Ingress", ingress)
    if not rendering.spec.network_policy.restrict_egress:
        return (inward,)
    return (inward, _policy(rendering, component, f"{component}-egress", "Egress", egress))


def _policy(
    rendering: Rendering, component: str, name: str, direction: Literal["Ingress", "Egress"], rules: list[Manifest]
) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": rendering.metadata(rendering.name(name), component),
        "spec": {
            "podSelector": _pods(rendering, component),
            "policyTypes": [direction],
            # The API server stores no empty list.
            **({direction.lower(): rules} if rules else {}),
        },
    }


def _to_coordinator(rendering: Rendering) -> list[Manifest]:
    asked = rendering.spec.network_policy
    port = main_port(rendering, COORDINATOR)
    clients: Manifest = {"ports": _tcp(port, *proxy_ports(rendering))}
    if asked.clients_from is not None:
        clients["from"] = _peers(asked.clients_from)
    if port == ROUTER_PORT and asked.clients_from is None:
        return [clients]  # everyone may reach the port that metrics are on
    # An empty list of clients means no peer; a rule without peers would allow all.
    rules = [clients] if asked.clients_from is None or asked.clients_from else []
    if rendering.fails_open:
        workers = {"podSelector": _pods_of_any(rendering, *WORKER_COMPONENTS)}
        rules.append({"ports": _tcp(ROUTER_PORT), "from": [workers]})
    return [*rules, {"ports": _tcp(ROUTER_PORT), "from": _scrapers(rendering)}]


def _to_picker(rendering: Rendering) -> list[Manifest]:
    """Return the rules for endpoint pickers: the gateway's proxies are clients."""
    return [*_from_clients(rendering, GRPC_PORT), {"ports": _tcp(ROUTER_PORT), "from": _scrapers(rendering)}]


def _from_clients(rendering: Rendering, port: int) -> list[Manifest]:
    """Return the rule by which clients reach a port; none for an empty list of clients, which means nobody."""
    peers = rendering.spec.network_policy.clients_from
    if peers is None:
        return [{"ports": _tcp(port)}]
    return [{"ports": _tcp(port), "from": _peers(peers)}] if peers else []


def _pods(rendering: Rendering, component: str) -> Manifest:
    """Return the selector of a component's pods; of workers it selects all components that they may have."""
    if component != WORKER_COMPONENT:
        return {"matchLabels": rendering.selector(component)}
    return _pods_of_any(rendering, *WORKER_COMPONENTS)


def _pods_of_any(rendering: Rendering, *components: str) -> Manifest:
    return {
        "matchLabels": {SERVICE_LABEL: rendering.key.name},
        "matchExpressions": [{"key": COMPONENT_LABEL, "operator": "In", "values": list(components)}],
    }


def _own_routers(rendering: Rendering) -> Manifest:
    fronts = (COORDINATOR, PICKER_COMPONENT) if rendering.picked else (COORDINATOR,)
    return {"podSelector": _pods_of_any(rendering, *fronts, *WORKER_COMPONENTS)}


def _to_workers(rendering: Rendering, component: str) -> list[Manifest]:
    sidecars = [_own_routers(rendering), *_scrapers(rendering), *_peers(rendering.spec.network_policy.workers_from)]
    rules: list[Manifest] = [{"ports": _tcp(ROUTER_PORT), "from": sidecars}]
    port = main_port(rendering, component)
    if rendering.mesh:
        rules.append({"ports": _tcp(port, *proxy_ports(rendering)), "from": [_own_routers(rendering)]})
    if rendering.picked:
        rules += _from_clients(rendering, port)  # the gateway's proxies send requests to workers themselves
    if rendering.record.paired:
        roles = [role for role in ROLES if component in (role, WORKER_COMPONENT)]
        # With KV events a session may move to another decode worker, which reads its KV from the one that it left.
        engine = rendering.spec.engine
        moves = engine.kv_events and engine.type != "sglang"  # whose decode workers prefill nothing
        alike = {WORKER_COMPONENT, "decode"} if moves else {WORKER_COMPONENT}
        readers = [one for one in WORKER_COMPONENTS if one != component or component in alike]
        rules.append(
            {
                "ports": _ports_of_kv(rendering, roles),
                "from": [{"podSelector": _pods_of_any(rendering, *readers)}],
            }
        )
    return rules


def _among_measured(rendering: Rendering) -> Manifest:
    """Return the rule for profiling engines: only they reach each other."""
    own = {"podSelector": {"matchLabels": rendering.selector(PROFILE_COMPONENT)}}
    return {"ports": _ports_of_kv(rendering, ROLES, ENGINE_PORT), "from": [own]}


def _ports_of_kv(rendering: Rendering, roles: Iterable[Role], *more: int) -> list[Manifest]:
    """Return the ports of engines of some roles to which others connect, and more."""
    ports = [kv_ports(rendering.spec, role) for role in roles]
    single = sorted({*more, *(port for item in ports for port in item.single)})
    return [*_tcp(*single), *_ranges(sorted({span for item in ports for span in item.spans}))]


def _scrapers(rendering: Rendering) -> list[Manifest]:
    return [
        *(dict(peer) for peer in rendering.settings.metrics_from),
        *_peers(rendering.spec.network_policy.metrics_from),
    ]


def _ranges(spans: Iterable[tuple[int, int]]) -> list[Manifest]:
    return [{"protocol": "TCP", "port": first, "endPort": last} for first, last in spans]


def _tcp(*ports: int) -> list[Manifest]:
    return [{"protocol": "TCP", "port": port} for port in ports]


def _peers(peers: Sequence[Peer]) -> list[Manifest]:
    return [peer.model_dump(mode="json", by_alias=True, exclude_none=True) for peer in peers]
