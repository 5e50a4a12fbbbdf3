"""What the components of the cluster are told: certificates, configuration files, commands."""

import datetime
import json
import tomllib
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store

from weft_e2e.cluster import certs, control_plane, coredns, kubectl, node, policies
from weft_e2e.cluster.config import ClusterConfig
from weft_e2e.cluster.fake_nodes import fake_node
from weft_e2e.cluster.paths import ClusterPaths
from weft_e2e.cluster.specs import MemberService, private_mounts

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
PATHS = ClusterPaths("demo", Path("/cache/clusters/demo"))
CONFIG = ClusterConfig(name="demo", nodes=3)


def test_the_api_servers_certificate_is_valid_for_every_way_to_it() -> None:
    authority = certs.Authority(NOW)
    pem, _ = authority.issue(certs.Subject("kube-apiserver", server=True))
    store = Store([authority.certificate])
    leaf = x509.load_pem_x509_certificate(pem)
    for name in ("localhost", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"):
        verifier = PolicyBuilder().store(store).time(NOW).build_server_verifier(x509.DNSName(name))
        assert len(verifier.verify(leaf, [])) == 2
    alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(address) for address in alternatives.get_values_for_type(x509.IPAddress)}
    assert addresses == {"127.0.0.1", "10.96.0.1", "172.30.0.1", "fd00:96::1", "fd00:30::1"}


def test_a_nodes_certificate_says_who_it_is_and_nothing_more() -> None:
    authority = certs.Authority(NOW)
    pem, _ = authority.issue(certs.subjects(("node-1",))["node-1"])
    leaf = x509.load_pem_x509_certificate(pem)
    assert [a.value for a in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["system:node:node-1"]
    assert [a.value for a in leaf.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == ["system:nodes"]
    purposes = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]


def test_keys_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    certs.write_all(tmp_path / "pki", ("node-1",))
    modes = {file.stat().st_mode & 0o077 for file in (tmp_path / "pki").iterdir()}
    assert modes == {0}
    names = {file.stem for file in (tmp_path / "pki").glob("*.key")}
    assert {"ca", "apiserver", "admin", "node-1", "service-account"} <= names


def test_a_kubeconfig_stands_alone_under_its_context(tmp_path: Path) -> None:
    certs.write_all(tmp_path, ("node-1",))
    text = kubectl.kubeconfig(server="https://127.0.0.1:1", pki=tmp_path, user="admin", context="weft-demo")
    content = yaml.safe_load(text)
    assert content["current-context"] == "weft-demo"
    assert [context["name"] for context in content["contexts"]] == ["weft-demo"]
    assert str(tmp_path) not in text
    file = tmp_path / "kubeconfig"
    kubectl.write_kubeconfig(file, text)
    assert file.stat().st_mode & 0o777 == 0o600


def test_containerd_is_told_where_a_nodes_own_files_are() -> None:
    text = node.containerd_toml(
        Path('/a "strange" place'), pause_image="localhost/weft-pause:1", cni_bin="/opt/cni/bin"
    )
    parsed = tomllib.loads(text)
    assert parsed["root"] == '/a "strange" place/containerd'
    cri = parsed["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["sandbox_image"] == "localhost/weft-pause:1"
    assert cri["cni"] == {"bin_dir": "/opt/cni/bin", "conf_dir": '/a "strange" place/cni', "max_conf_num": 1}
    assert cri["containerd"]["runtimes"]["runc"]["options"]["SystemdCgroup"] is False


def test_nodes_share_no_pod_address() -> None:
    subnets = {json.dumps(node.cni_conflist(CONFIG, name)["plugins"]) for name in CONFIG.node_names}
    assert len(subnets) == 3


def test_kubelets_give_the_controller_manager_several_chances_to_hear_them() -> None:
    config = node.kubelet_config(CONFIG, PATHS, "node-2")
    lease = config["nodeLeaseDurationSeconds"]
    assert isinstance(lease, int)
    grace = control_plane.NODE_GRACE_SECONDS
    assert lease * 0.25 * 3 < grace, "two lost renewals in a row would make a healthy node NotReady"
    assert config["resolvConf"] == "/cache/clusters/demo/node-2/resolv.conf"


def test_wiring_leads_to_every_other_nodes_pods() -> None:
    commands = [" ".join(command) for command in node.wiring(CONFIG, "node-2")]
    assert "route add 10.244.1.0/24 via 172.30.0.11" in commands
    assert "route add 10.244.3.0/24 via 172.30.0.13" in commands
    assert not any("10.244.2.0" in command for command in commands)


def test_an_ipv6_cluster_has_no_address_of_ipv4_beyond_loopback() -> None:
    config = ClusterConfig(name="demo", nodes=3, ip_family="ipv6")
    commands = [" ".join(command) for command in node.wiring(config, "node-2")]
    assert "address add fd00:30::12/64 dev eth0 nodad" in commands
    assert "route add default via fd00:30::1" in commands
    assert "route add fd00:244:3::/64 via fd00:30::13" in commands
    listed = control_plane.services(config, PATHS, kubernetes="k8s", forward="fwd", python="py", listener=7)
    services = {service.name: service for service in listed}
    assert services["api-forward"].argv == ["fwd", "7", "fd00:30::1", "6443"]
    assert "https://[fd00:30::1]:6443/readyz" in services["kube-scheduler"].gate
    assert {"--advertise-address=fd00:30::1", "--service-cluster-ip-range=fd00:96::/112"} <= set(
        services["kube-apiserver"].argv
    )
    ipam = node.cni_conflist(config, "node-2")["plugins"][0]["ipam"]  # type: ignore[index]
    assert (ipam["ranges"], ipam["routes"]) == ([[{"subnet": "fd00:244:2::/64"}]], [{"dst": "::/0"}])
    told = json.dumps([*commands, *map(str, control_plane.network_setup(config)), *(s.argv for s in listed), ipam])
    assert not any(part in told for part in ("10.96.", "10.244.", "172.30."))


def test_a_dual_stack_cluster_has_both_families_and_ipv4_first() -> None:
    config = ClusterConfig(name="demo", nodes=2, ip_family="dual")
    kubelet = next(s for s in node.services(config, PATHS, "node-1", kubernetes="k", python="p") if s.name == "kubelet")
    assert "--node-ip=172.30.0.11,fd00:30::11" in kubelet.argv
    assert node.kubelet_config(config, PATHS, "node-1")["clusterDNS"] == ["10.96.0.10"]
    ipam = node.cni_conflist(config, "node-1")["plugins"][0]["ipam"]  # type: ignore[index]
    assert ipam["ranges"] == [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:244:1::/64"}]]
    assert config.addresses.services == "10.96.0.0/16,fd00:96::/112"
    assert policies.family_flags(config)[1:] == ["--enable-ipv4=true", "--enable-ipv6=true"]


@pytest.mark.parametrize(
    ("gpus", "rdma", "expected"),
    [(8, 8, ["nvidia.com/gpu=8", "rdma/ib=8"]), (4, 0, ["nvidia.com/gpu=4"]), (0, 0, [])],
)
def test_devices_are_announced_as_asked(gpus: int, rdma: int, expected: list[str]) -> None:
    config = ClusterConfig(gpus=gpus, rdma=rdma)
    assert node.devices(config) == expected
    names = [service.name for service in node.services(config, PATHS, "node-1", kubernetes="k", python="p")]
    assert ("simulated-devices" in names) == bool(expected)
    assert node.labels(config)["weft.dev/simulated-gpus"] == ("true" if gpus else "false")


def _services() -> dict[str, MemberService]:
    listed = control_plane.services(CONFIG, PATHS, kubernetes="k8s", forward="fwd", python="py", listener=7)
    return {service.name: service for service in listed}


def test_only_the_forwarder_listens_on_the_machine() -> None:
    services = _services()
    assert services["api-forward"].argv == ["fwd", "7", "172.30.0.1", "6443"]
    assert not any("7" in service.argv for name, service in services.items() if name != "api-forward")


def test_what_needs_the_api_waits_for_it() -> None:
    services = _services()
    for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
        assert "https://172.30.0.1:6443/readyz" in services[name].gate
    assert services["etcd"].gate == services["kube-apiserver"].gate == []


def test_machine_wide_kernel_settings_are_closed_before_anything_runs() -> None:
    commands = [" ".join(command) for command in private_mounts()]
    assert commands[0] == "mount --make-rprivate /", "nothing may be mounted before the machine is out of reach"
    assert commands.index("mount -o remount,bind,ro /proc/sys") > commands.index("mount --bind /proc/sys /proc/sys")
    shown = [command[-1] for command in node.kernel_settings() if command[0] == "mount"]
    assert "/proc/sys/vm/overcommit_memory" in shown


def test_dns_keeps_its_fixed_address_and_one_replica_per_node() -> None:
    listed = coredns.objects("localhost/weft-coredns:1", 3, CONFIG.addresses.dns)
    objects = {str(entry["kind"]): entry for entry in listed}
    service, deployment = objects["Service"]["spec"], objects["Deployment"]["spec"]
    assert isinstance(service, dict)
    assert isinstance(deployment, dict)
    assert service["clusterIP"] == "10.96.0.10"
    assert deployment["replicas"] == 3
    assert "forward" not in coredns.COREFILE


def test_fake_nodes_are_marked_and_hold_nothing_that_really_runs() -> None:
    fake = fake_node("fake-1", CONFIG)
    metadata, spec = fake["metadata"], fake["spec"]
    assert isinstance(metadata, dict)
    assert isinstance(spec, dict)
    assert metadata["annotations"] == {"kwok.x-k8s.io/node": "fake"}
    assert metadata["labels"]["weft.dev/gpu-type"] == "nvidia-h20"
    assert spec["taints"][0]["effect"] == "NoSchedule"


def test_a_slow_machine_is_asked_less_often_and_given_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TIMEOUT_SCALE", "4")
    config = node.kubelet_config(CONFIG, PATHS, "node-1")
    assert (config["nodeLeaseDurationSeconds"], config["nodeStatusUpdateFrequency"]) == (80, "8s")
    argv = control_plane.services(CONFIG, PATHS, kubernetes="k", forward="f", python="p", listener=3)
    manager = next(service for service in argv if service.name == "kube-controller-manager")
    assert "--node-monitor-grace-period=80s" in manager.argv
