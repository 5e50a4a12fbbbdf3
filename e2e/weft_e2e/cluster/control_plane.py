"""What runs in the control plane's namespaces, and how it is told to. Pure."""

import json
from pathlib import Path

from weft_e2e.cluster.addresses import API_PORT
from weft_e2e.cluster.config import CLUSTER_DOMAIN, CONTROL_PLANE, ClusterConfig, node_index
from weft_e2e.cluster.deadlines import scaled
from weft_e2e.cluster.paths import ClusterPaths
from weft_e2e.cluster.specs import CgroupWrites, MemberService, MemberSpec, private_mounts

# A node that has been silent for this long is NotReady; its kubelet renews its lease every 5 s (node.py).
NODE_GRACE_SECONDS = 20.0
# With the default of 20 requests a second the controllers need 5 s only to make their own accounts.
QUOTA = ("--kube-api-qps=200", "--kube-api-burst=400")
ETCD = "http://127.0.0.1:2379"
# Every request of Weft's own programs, and nobody else's: what an idle operator asks for is counted from this log.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts:weft-system"]}, {"level": "None"}],
}


def disk_files(paths: ClusterPaths) -> dict[Path, str]:
    """Return the files, by path, that the control plane reads when it starts."""
    return {_audit_policy(paths): json.dumps(AUDIT_POLICY, indent=1)}


def _audit_policy(paths: ClusterPaths) -> Path:
    return paths.member(CONTROL_PLANE) / "audit-policy.json"


def network_setup(config: ClusterConfig) -> list[list[str]]:
    """Commands that make the bridge of the cluster, and the ways to every node's pods."""
    commands = [["ip", "link", "add", "br0", "type", "bridge"], ["ip", "link", "set", "br0", "up"]]
    for family in config.addresses.families:
        commands.append(["ip", "address", "add", family.control_plane_on_link, "dev", "br0", *family.flags])
        # A packet needs a way out before kube-proxy's rules can give it another destination.
        commands.append(["ip", "route", "add", family.services, "dev", "br0"])
        nodes = [node_index(name) for name in config.node_names]
        commands += [["ip", "route", "add", family.pod_cidr(i), "via", family.node_ip(i)] for i in nodes]
    return commands


def api_gate(config: ClusterConfig, python: str, paths: ClusterPaths, user: str) -> list[str]:
    """Command that succeeds once the API server is ready to serve, asked with `user`'s certificate."""
    probe = Path(__file__).with_name("api_probe.py")
    return [python, "-I", "-S", str(probe), f"{config.addresses.api_url}/readyz", str(paths.pki), user]


def proxy_service(config: ClusterConfig, kubernetes: str, python: str, paths: ClusterPaths, node: str) -> MemberService:
    """kube-proxy, which makes the Services' addresses work in the namespace it runs in."""
    return MemberService(
        "kube-proxy",
        [
            kubernetes,
            "kube-proxy",
            f"--kubeconfig={paths.root / 'proxy.kubeconfig'}",
            f"--hostname-override={node}",
            "--proxy-mode=iptables",
            # The machine-wide connection-tracking settings are not this namespace's to change.
            "--conntrack-max-per-core=0",
            "--conntrack-min=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
            "--iptables-localhost-nodeports=false",
            "--healthz-bind-address=127.0.0.1:10256",
            "--metrics-bind-address=127.0.0.1:10249",
        ],
        gate=api_gate(config, python, paths, "proxy"),
    )


def services(
    config: ClusterConfig, paths: ClusterPaths, *, kubernetes: str, forward: str, python: str, listener: int
) -> list[MemberService]:
    """The control plane's programs; `listener` is the inherited socket on the machine's loopback."""
    pki = paths.pki
    disk = paths.member(CONTROL_PLANE)
    ready = api_gate(config, python, paths, "admin")
    return [
        MemberService(
            "etcd",
            [
                kubernetes,
                "etcd",
                "--name=weft",
                f"--data-dir={disk / 'etcd'}",
                f"--listen-client-urls={ETCD}",
                f"--advertise-client-urls={ETCD}",
                "--listen-peer-urls=http://127.0.0.1:2380",
                "--unsafe-no-fsync",  # test equipment: a power cut of the machine loses it anyway
                "--auto-compaction-retention=5m",
                "--log-level=warn",
            ],
        ),
        MemberService(
            "kube-apiserver",
            [
                kubernetes,
                "kube-apiserver",
                f"--etcd-servers={ETCD}",
                f"--secure-port={API_PORT}",
                f"--advertise-address={config.addresses.control_plane}",
                f"--service-cluster-ip-range={config.addresses.services}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged",
                f"--client-ca-file={pki / 'ca.crt'}",
                f"--tls-cert-file={pki / 'apiserver.crt'}",
                f"--tls-private-key-file={pki / 'apiserver.key'}",
                f"--kubelet-client-certificate={pki / 'apiserver-kubelet.crt'}",
                f"--kubelet-client-key={pki / 'apiserver-kubelet.key'}",
                "--kubelet-preferred-address-types=InternalIP",
                f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
                f"--service-account-key-file={pki / 'service-account.pub'}",
                f"--service-account-signing-key-file={pki / 'service-account.key'}",
                f"--audit-policy-file={_audit_policy(paths)}",
                f"--audit-log-path={paths.log(CONTROL_PLANE, 'audit')}",
                "--audit-log-maxsize=50",  # MB
                "--audit-log-maxbackup=1",
                "--profiling=false",
            ],
        ),
        MemberService("api-forward", [forward, str(listener), config.addresses.control_plane, str(API_PORT)]),
        # These two exit when the API server's own roles are not there yet.
        MemberService(
            "kube-controller-manager",
            [
                kubernetes,
                "kube-controller-manager",
                *_as("controller-manager", paths),
                "--leader-elect=false",
                *QUOTA,
                "--use-service-account-credentials",
                f"--service-account-private-key-file={pki / 'service-account.key'}",
                f"--root-ca-file={pki / 'ca.crt'}",
                f"--cluster-signing-cert-file={pki / 'ca.crt'}",
                f"--cluster-signing-key-file={pki / 'ca.key'}",
                f"--node-monitor-grace-period={scaled(NODE_GRACE_SECONDS):.0f}s",
                "--node-monitor-period=2s",
                "--bind-address=127.0.0.1",
                "--profiling=false",
            ],
            gate=ready,
        ),
        MemberService(
            "kube-scheduler",
            [
                kubernetes,
                "kube-scheduler",
                *_as("scheduler", paths),
                "--leader-elect=false",
                *QUOTA,
                "--bind-address=127.0.0.1",
                "--profiling=false",
            ],
            gate=ready,
        ),
        # Here too, so that a Service is reached from the machine whichever node is off. It needs a node to
        # speak for; the first one's object stays when its power goes.
        proxy_service(config, kubernetes, python, paths, config.node_names[0]),
    ]


def spec(
    config: ClusterConfig, paths: ClusterPaths, *, cgroup_writes: CgroupWrites, programs: list[MemberService]
) -> MemberSpec:
    return MemberSpec(
        hostname=CONTROL_PLANE,
        record=str(paths.record(CONTROL_PLANE)),
        log_dir=str(paths.member(CONTROL_PLANE) / "logs"),
        cgroup_writes=cgroup_writes,
        setup=private_mounts() + network_setup(config),
        services=programs,
    )


def _as(user: str, paths: ClusterPaths) -> list[str]:
    file = paths.root / f"{user}.kubeconfig"
    return [f"--kubeconfig={file}", f"--authentication-kubeconfig={file}", f"--authorization-kubeconfig={file}"]
