"""The HTTPRoute and the InferencePool by which a gateway of the Gateway API reaches a service. Pure.

Both kinds are optional: most clusters have neither.
"""

from typing import Final

from weft_operator.api.gateway import Gateway
from weft_operator.api.objects import COMPONENT_LABEL, PICKER_COMPONENT, SERVICE_LABEL, WORKER_COMPONENT, Manifest
from weft_operator.render.inputs import Rendering
from weft_operator.render.router_container import GRPC_PORT, main_port
from weft_operator.render.services import SECURE_PORT, SERVICE_PORT

GATEWAY_API: Final = "gateway.networking.k8s.io"
INFERENCE_API: Final = "inference.networking.k8s.io"
HTTP_ROUTE: Final = (f"{GATEWAY_API}/v1", "HTTPRoute")
INFERENCE_POOL: Final = (f"{INFERENCE_API}/v1", "InferencePool")


def gateway_objects(rendering: Rendering) -> tuple[Manifest, ...]:
    """Return the pool, where the gateway has a picker, and the route; none without a gateway."""
    gateway = rendering.spec.gateway
    if gateway is None:
        return ()
    pool = (_inference_pool(rendering, gateway),) if rendering.picked else ()
    return (*pool, _http_route(rendering, gateway))


def _http_route(rendering: Rendering, gateway: Gateway) -> Manifest:
    api_version, kind = HTTP_ROUTE
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": rendering.metadata(rendering.name(), "gateway"),
        "spec": {
            "parentRefs": [
                {
                    "group": GATEWAY_API,
                    "kind": "Gateway",
                    **ref.model_dump(mode="json", by_alias=True, exclude_none=True),
                }
                for ref in gateway.parent_refs
            ],
            **({"hostnames": gateway.hostnames} if gateway.hostnames else {}),
            "rules": [
                {
                    "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                    "backendRefs": [{**_backend(rendering), "weight": 1}],
                    # A stream may take an hour; the router has its own bounds.
                    "timeouts": {"request": "0s"},
                }
            ],
        },
    }


def _backend(rendering: Rendering) -> Manifest:
    name = rendering.name()
    if rendering.picked:
        return {"group": INFERENCE_API, "kind": INFERENCE_POOL[1], "name": name}
    port = SERVICE_PORT if rendering.spec.coordinator.tls is None else SECURE_PORT
    return {"group": "", "kind": "Service", "name": name, "port": port}


def _inference_pool(rendering: Rendering, gateway: Gateway) -> Manifest:
    api_version, kind = INFERENCE_POOL
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": rendering.metadata(rendering.name(), "gateway"),
        "spec": {
            "selector": {
                "matchLabels": {
                    SERVICE_LABEL: rendering.key.name,
                    COMPONENT_LABEL: rendering.component("decode"),
                }
            },
            "targetPorts": [{"number": main_port(rendering, WORKER_COMPONENT)}],
            "endpointPickerRef": {
                "group": "",
                "kind": "Service",
                "name": rendering.name(PICKER_COMPONENT),
                "port": {"number": GRPC_PORT},
                "failureMode": gateway.failure_mode,
            },
        },
    }
