"""Weft on a cluster whose nodes, pods and Services have addresses of IPv6 only."""

import asyncio
import os
import secrets
from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

import pytest

from weft_e2e.checks import check_history_read, check_nothing_left, check_session_served, check_tokens_computed_once
from weft_e2e.cluster import ClusterConfig
from weft_e2e.demo.settings import SYSTEM_NAMESPACE
from weft_e2e.kube import Object
from weft_e2e.scenarios.installed import CONTEXT_VARIABLE, Installed, installed_locally
from weft_e2e.scenarios.manifests import changed, small_service
from weft_e2e.service import Service
from weft_e2e.waiting import until
from weft_e2e_tests.test_service_cluster import applied
from weft_operator.metrics.credentials import Credentials
from weft_operator.metrics.prometheus import ask

# A guard against a test that hangs: every wait has a deadline of its own, and they add up to less.
pytestmark = [pytest.mark.cluster, pytest.mark.own_cluster, pytest.mark.timeout(600, func_only=True)]

SCRAPED_S = 60.0
"""Prometheus finds new pods within 5 s and scrapes each every 5 s."""


@pytest.fixture(scope="module")
def weft6() -> Iterator[Installed]:
    """Give a cluster of IPv6 with Weft installed."""
    if os.environ.get(CONTEXT_VARIABLE):
        pytest.skip("a cluster of your own has the addresses that it has")
    with installed_locally(ClusterConfig(name="test-ipv6", ip_family="ipv6")) as found:
        found.wait_whole(timeout_s=120)
        yield found


def scraped(weft: Installed, service: Service) -> dict[str, str]:
    """Return the address of everything of a service that Prometheus scrapes with success, by job and pod."""
    query = f'up{{namespace="{service.namespace}"}} == 1'
    with weft.kube.host_forward(SYSTEM_NAMESPACE, "weft-prometheus", 9090) as url:
        _, (found,) = ask(url, Credentials(), [query])
    assert isinstance(found, list)
    return {f"{one['metric']['job']} {one['metric']['pod']}": one["metric"]["instance"] for one in found}


def ips(pod: Object) -> list[str]:
    return [entry["ip"] for entry in pod["status"]["podIPs"]]


def test_sessions_kv_and_metrics_go_over_ipv6_between_nodes(weft6: Installed) -> None:
    namespace = f"e2e-ipv6-{secrets.token_hex(2)}"
    weft6.kube.kubectl("create", "namespace", namespace)
    whole_node = [{"name": "h20", "gpuType": "nvidia-h20", "gpusPerNode": 8, "degrees": [8]}]
    service = applied(weft6, namespace, changed(small_service(gpus=16), "spec.capacity.pools", whole_node))
    workers = {role: pod for role in ("prefill", "decode") for pod in service.pods(role)}
    assert {pod["spec"]["nodeName"] for pod in workers.values()} == {"node-1", "node-2"}
    for pod in service.pods():
        assert {ip_address(ip).version for ip in ips(pod)} == {6}

    before = service.metrics_pages()
    with service.reachable() as target:
        transcript = asyncio.run(check_session_served(target, deadline_s=60))
    after = service.metrics_pages()
    later = [record for record in transcript.records if record.index and record.route == "remote"]
    assert len(later) == 3, [(record.route, record.reason) for record in transcript.records]
    check_history_read(before, after, remote_later_rounds=len(later))
    check_tokens_computed_once(before, after, transcript.records)

    wanted = {f"weft-router {pod['metadata']['name']}" for pod in service.pods()}
    wanted |= {f"weft-engine {pod['metadata']['name']}" for pod in workers.values()}
    found: dict[str, str] = {}

    def whole() -> bool:
        found.clear()
        found.update(scraped(weft6, service))
        return found.keys() == wanted

    until(whole, what="a scrape of every router and engine", timeout_s=SCRAPED_S, last=lambda: str(sorted(found)))
    addresses = {ip for pod in service.pods() for ip in ips(pod)}
    assert {urlsplit(f"//{instance}").hostname for instance in found.values()} == addresses

    weft6.kube.kubectl("delete", "dis", service.name, "-n", namespace, "--wait=false")
    check_nothing_left(weft6.kube, namespace, timeout_s=120)
