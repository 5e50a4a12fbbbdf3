"""The request for a cluster, its addresses and its state file."""

import ipaddress
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_e2e.cluster import state
from weft_e2e.cluster.addresses import IPV4, IPV6, AddressFamily
from weft_e2e.cluster.config import (
    MAX_NODES,
    ClusterConfig,
    node_index,
)
from weft_e2e.cluster.errors import ClusterError, Refused
from weft_e2e.cluster.paths import ClusterPaths
from weft_e2e.cluster.state import ClusterState

NAMES = st.text(string.ascii_lowercase + string.digits + "-", min_size=1, max_size=20).filter(
    lambda name: not name.startswith("-") and not name.endswith("-")
)
CONFIGS = st.builds(
    ClusterConfig,
    name=NAMES,
    nodes=st.integers(1, MAX_NODES),
    gpus=st.integers(0, 64),
    rdma=st.integers(0, 64),
    gpu_type=st.sampled_from(["nvidia-h20", "nvidia-a100-80", "x"]),
    api_port=st.none() | st.integers(1024, 65535),
)


@given(
    st.builds(
        ClusterState,
        config=CONFIGS,
        api_port=st.integers(1, 65535),
        created=st.floats(0, 1e10),
        powered_off=st.lists(st.sampled_from(["node-1", "node-2"]), unique=True).map(tuple),
        fake_nodes=st.integers(0, 1000),
    )
)
def test_state_survives_its_file(written: ClusterState) -> None:
    assert ClusterState.from_json(written.to_json()) == written


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"config": {"name": "x"}}', '{"config": 3}'])
def test_a_state_of_another_shape_is_not_used(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ClusterState.from_json(text)


def test_power_is_noted_once_per_node() -> None:
    on = ClusterState(config=ClusterConfig(), api_port=1, created=0.0)
    off = on.with_power("node-1", on=False).with_power("node-1", on=False)
    assert off.powered_off == ("node-1",)
    assert off.with_power("node-1", on=True) == on


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"name": "Local"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a" * 21}, "name"),
        ({"name": "../x"}, "name"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": MAX_NODES + 1}, "fake nodes"),
        ({"gpus": -1}, "gpus"),
        ({"rdma": 65}, "rdma"),
        ({"gpu_type": "h 20"}, "gpu-type"),
        ({"api_port": 80}, "api-port"),
        ({"ip_family": "ipx"}, "ip-family"),
    ],
)
def test_an_impossible_request_names_its_field(values: dict[str, int | str], word: str) -> None:
    with pytest.raises(Refused, match=word):
        ClusterConfig.from_dict(ClusterConfig().to_dict() | values)


@pytest.mark.parametrize("family", [IPV4, IPV6])
def test_addresses_never_collide(family: AddressFamily) -> None:
    nodes = [node_index(name) for name in ClusterConfig(nodes=MAX_NODES).node_names]
    addresses = [family.control_plane, *map(family.node_ip, nodes)]
    assert len(set(addresses)) == len(addresses)
    link = ipaddress.ip_interface(family.control_plane_on_link).network
    assert {ipaddress.ip_interface(family.node_on_link(node)).network for node in nodes} == {link}
    networks = [link, *map(ipaddress.ip_network, [family.services, *map(family.pod_cidr, nodes)])]
    assert not any(a.overlaps(b) for i, a in enumerate(networks) for b in networks[:i])
    assert all(network.is_private for network in networks)
    services = ipaddress.ip_network(family.services)
    assert ipaddress.ip_address(family.dns) in services
    assert ipaddress.ip_address(family.api_service) == services[1]
    assert {ipaddress.ip_network(family.everywhere).version} == {network.version for network in networks}


def test_differences_are_told_and_an_unasked_port_is_none() -> None:
    running = ClusterConfig(gpus=8, api_port=16443)
    assert running.differences(ClusterConfig(gpus=8)) == []
    assert running.differences(ClusterConfig(gpus=4, api_port=7000)) == [
        "gpus (8, asked 4)",
        "api_port (16443, asked 7000)",
    ]


def test_control_groups_of_two_caches_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "/somewhere/one")
    one = ClusterPaths.of("local").cgroup
    monkeypatch.setenv("WEFT_CACHE", "/somewhere/two")
    assert one != ClusterPaths.of("local").cgroup
    assert one.startswith("weft-local-")


def test_one_command_at_a_time_changes_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.setattr(state, "LOCK_SECONDS", 0.0)
    paths = ClusterPaths.of("x")
    paths.root.mkdir(parents=True)
    with state.locked(paths):
        with pytest.raises(ClusterError, match="another command"), state.locked(paths):
            pytest.fail("two hold the lock")
        paths.root.rmdir()
    assert not paths.lock.exists(), "no cluster, no lock"
    with state.locked(paths):
        assert paths.lock.exists()
