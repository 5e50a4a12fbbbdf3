"""What runs in a node's namespaces, and how it is told to. Pure."""

import json
import shutil
from pathlib import Path

from weft_e2e.cluster.config import CLUSTER_DOMAIN, ClusterConfig, node_index
from weft_e2e.cluster.control_plane import api_gate, proxy_service
from weft_e2e.cluster.deadlines import scaled
from weft_e2e.cluster.paths import ClusterPaths
from weft_e2e.cluster.specs import CgroupWrites, MemberService, MemberSpec, bind, private_mounts, sys_mounts

# In the node's own /run: short enough for a socket's name (108 bytes), and gone with the node.
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
# What a kubelet insists on setting, and what it sets; all of it belongs to the whole machine.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
# Folders whose names are fixed in the kubelet and in containerd: each node mounts its own over them.
FIXED_FOLDERS = ("/var/lib/kubelet", "/var/lib/cni", "/var/log")
CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin")


def containerd_toml(disk: Path, *, pause_image: str, cni_bin: str) -> str:
    """Return containerd 1.6's configuration for a node whose files are below `disk`."""
    return f"""\
version = 2
root = {json.dumps(str(disk / "containerd"))}
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", \
"io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt", \
"io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]

[grpc]
address = {json.dumps(CONTAINERD_SOCKET)}

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = {json.dumps(pause_image)}
restrict_oom_score_adj = true
disable_apparmor = true
enable_selinux = false
tolerate_missing_hugetlb_controller = true

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {json.dumps(cni_bin)}
conf_dir = {json.dumps(str(disk / "cni"))}
max_conf_num = 1
"""


def cni_conflist(config: ClusterConfig, node: str) -> dict[str, object]:
    """Return the pod network of a node, with an address of each family for every pod.

    Point to point, not a bridge: every packet is routed, so kube-proxy's rules see traffic between two
    pods of one node too, without br_netfilter. Leases live in /run: after a power cut no pod holds one.
    """
    families, index = config.addresses.families, node_index(node)
    return {
        "cniVersion": "0.4.0",
        "name": "weft",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni",
                    "ranges": [[{"subnet": family.pod_cidr(index)}] for family in families],
                    "routes": [{"dst": family.everywhere} for family in families],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def kubelet_config(config: ClusterConfig, paths: ClusterPaths, node: str) -> dict[str, object]:
    disk = paths.member(node)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        # Where CAP_SYS_RESOURCE is missing (many containers) the kubelet cannot lower its own oom score, and
        # kernel settings are read-only here on purpose; this gate makes it go on.
        "featureGates": {"KubeletInUserNamespace": True},
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(paths.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [config.addresses.dns],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": str(disk / "resolv.conf"),
        "volumePluginDir": str(disk / "volume-plugins"),
        # The disk is the machine's and may be nearly full already; images are never collected.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "256Mi",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "256Mi",
        },
        "nodeLeaseDurationSeconds": int(scaled(20)),  # renewed every quarter of it: four chances in the grace period
        "nodeStatusUpdateFrequency": f"{scaled(2):.0f}s",  # devices show up within 2 s of the kubelet's start
        "syncFrequency": "15s",
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "logging": {"verbosity": 1},
    }


def labels(config: ClusterConfig) -> dict[str, str]:
    simulated = str(config.gpus > 0).lower()
    return {"weft.dev/gpu-type": config.gpu_type, "weft.dev/simulated-gpus": simulated}


def devices(config: ClusterConfig) -> list[str]:
    counts = {"nvidia.com/gpu": config.gpus, "rdma/ib": config.rdma}
    return [f"{resource}={count}" for resource, count in counts.items() if count]


def services(
    config: ClusterConfig, paths: ClusterPaths, node: str, *, kubernetes: str, python: str
) -> list[MemberService]:
    disk = paths.member(node)
    programs = [
        MemberService("containerd", ["containerd", "--config", str(disk / "containerd.toml"), "--log-level", "warn"]),
        proxy_service(config, kubernetes, python, paths, node),
        MemberService(
            "kubelet",
            [
                kubernetes,
                "kubelet",
                f"--kubeconfig={paths.root / node}.kubeconfig",
                f"--config={disk / 'kubelet.json'}",
                f"--cert-dir={disk / 'kubelet-pki'}",
                f"--hostname-override={node}",
                f"--node-ip={config.addresses.node_ips(node_index(node))}",
                "--node-labels=" + ",".join(f"{key}={value}" for key, value in labels(config).items()),
            ],
            # The kubelet exits when its runtime does not answer; before the API is ready it would only wait longer
            # and longer between its attempts to register.
            gate=[*_containerd_gate(), *api_gate(config, python, paths, node)],
        ),
    ]
    if devices(config):
        programs.append(MemberService("simulated-devices", [kubernetes, "simulated-devices", *devices(config)]))
    return programs


def _containerd_gate() -> list[str]:
    """Head of a command: the words after it are run once containerd answers."""
    return ["sh", "-c", f'ctr -a {CONTAINERD_SOCKET} version >/dev/null && exec "$@"', "gate"]


def setup(paths: ClusterPaths, node: str, cgroup_mounts: list[list[str]], resolv_conf: str) -> list[list[str]]:
    """Commands that make a node's own file-system view; `resolv_conf` is where the machine's really lies."""
    disk = paths.member(node)
    return [
        *private_mounts(),
        *sys_mounts(cgroup_mounts),
        *kernel_settings(),
        # Kubelets hand volumes to containers through shared mounts.
        ["mount", "--make-rshared", "/"],
        bind(disk / "kubelet", "/var/lib/kubelet"),
        bind(disk / "log", "/var/log"),
        ["mkdir", "/run/cni-results"],
        ["mount", "--bind", "/run/cni-results", "/var/lib/cni"],
        ["sh", "-c", '[ -e "$1" ] || { mkdir -p "${1%/*}" && touch "$1"; }', "make", resolv_conf],
        # So that nothing inside ever asks the machine's resolver.
        bind(disk / "resolv.conf", resolv_conf),
        ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"],
        ["sh", "-c", "f=/proc/sys/net/ipv6/conf/all/forwarding; [ ! -e $f ] || echo 1 > $f"],
    ]


def kernel_settings() -> list[list[str]]:
    """Commands that show the kubelet the machine-wide settings it wants, without changing the machine's."""
    commands = []
    for name, value in KERNEL_SETTINGS.items():
        shown = f"/run/kernel-settings/{name}"
        commands.append(["sh", "-c", 'mkdir -p "${1%/*}" && echo "$2" > "$1"', "show", shown, str(value)])
        commands.append(["mount", "--bind", shown, f"/proc/sys/{name}"])
    return commands


def wiring(config: ClusterConfig, node: str) -> list[list[str]]:
    """Arguments of `ip`, inside the node, once its eth0 is there."""
    commands = [["link", "set", "eth0", "up"]]
    for family in config.addresses.families:
        commands.append(["address", "add", family.node_on_link(node_index(node)), "dev", "eth0", *family.flags])
        commands.append(["route", "add", "default", "via", family.control_plane])
        others = [node_index(name) for name in config.node_names if name != node]
        commands += [["route", "add", family.pod_cidr(other), "via", family.node_ip(other)] for other in others]
    return commands


def write_disk(config: ClusterConfig, paths: ClusterPaths, node: str, *, pause_image: str) -> None:
    """Write the node's configuration files and make the folders that its setup mounts."""
    disk = paths.member(node)
    for folder in ("kubelet", "log", "logs", "cni"):
        (disk / folder).mkdir(parents=True, exist_ok=True)
    cni_bin = next((folder for folder in CNI_FOLDERS if shutil.which("ptp", path=folder)), CNI_FOLDERS[0])
    (disk / "containerd.toml").write_text(containerd_toml(disk, pause_image=pause_image, cni_bin=cni_bin))
    (disk / "cni" / "10-weft.conflist").write_text(json.dumps(cni_conflist(config, node), indent=2))
    (disk / "kubelet.json").write_text(json.dumps(kubelet_config(config, paths, node), indent=2))
    (disk / "resolv.conf").write_text(f"nameserver {config.addresses.dns}\n")


def spec(
    paths: ClusterPaths,
    node: str,
    *,
    cgroup_writes: CgroupWrites,
    commands: list[list[str]],
    programs: list[MemberService],
) -> MemberSpec:
    return MemberSpec(
        hostname=node,
        record=str(paths.record(node)),
        log_dir=str(paths.member(node) / "logs"),
        cgroup_writes=cgroup_writes,
        setup=commands,
        services=programs,
    )
