"""Services: one address for clients, and headless ones that give the worker pods names.

Pods have their names before they are ready, because the nodes of one worker must find each other to become so.
"""

from weft_operator.api.objects import PICKER_COMPONENT, Manifest
from weft_operator.render.inputs import Rendering
from weft_operator.render.router_container import COORDINATOR, GRPC_PORT, main_port

SERVICE_PORT = 80
SECURE_PORT = 443
FAMILIES = "PreferDualStack"
"""An address of each family that the cluster has; in a cluster with one family the same as without it."""


def services(rendering: Rendering) -> tuple[Manifest, ...]:
    """Return the Services of coordinators and endpoint pickers, and a headless one for each component of workers."""
    front: Manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": rendering.metadata(rendering.name(), "coordinator"),
        "spec": {
            "type": "ClusterIP",
            "ipFamilyPolicy": FAMILIES,
            "selector": rendering.selector("coordinator"),
            "ports": [_front_port(rendering)],
        },
    }
    headless = tuple(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": rendering.metadata(rendering.name(component), component),
            "spec": {
                "type": "ClusterIP",
                "clusterIP": "None",
                "ipFamilyPolicy": FAMILIES,
                "publishNotReadyAddresses": True,
                "selector": rendering.selector(component),
                "ports": [
                    {
                        "name": "http",
                        "port": main_port(rendering, component),
                        "targetPort": main_port(rendering, component),
                        "protocol": "TCP",
                        # A mesh must pass connections through as they are: each proves itself (decision 20).
                        "appProtocol": "tcp",
                    },
                ],
            },
        }
        for component in rendering.worker_components
    )
    return (front, *_picker_service(rendering), *headless)


def _picker_service(rendering: Rendering) -> tuple[Manifest, ...]:
    """Return the Service by which a gateway reaches the endpoint pickers, if there are any."""
    if not rendering.picked:
        return ()
    return (
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": rendering.metadata(rendering.name(PICKER_COMPONENT), PICKER_COMPONENT),
            "spec": {
                "type": "ClusterIP",
                "ipFamilyPolicy": FAMILIES,
                "selector": rendering.selector(PICKER_COMPONENT),
                "ports": [
                    {
                        "name": "grpc",
                        "port": GRPC_PORT,
                        "targetPort": GRPC_PORT,
                        "protocol": "TCP",
                        "appProtocol": "http2",
                    },
                ],
            },
        },
    )


def _front_port(rendering: Rendering) -> Manifest:
    """Return the one port for clients; a service with a certificate has no plain one.

    A mesh knows the protocol by the name, too; what is said twice needs no version of a mesh.
    """
    secure = rendering.spec.coordinator.tls is not None
    name, port = ("https", SECURE_PORT) if secure else ("http", SERVICE_PORT)
    target = main_port(rendering, COORDINATOR)
    protocol = {"appProtocol": name} if rendering.mesh else {}
    return {"name": name, "port": port, "targetPort": target, "protocol": "TCP", **protocol}
