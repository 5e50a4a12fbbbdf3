"""Brings a cluster up and down, and its nodes' power on and off."""

import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace

from weft_e2e.cluster import certs, cgroups, coredns, images, kubectl, members, preflight, readiness, state
from weft_e2e.cluster.archives import ImageArchive
from weft_e2e.cluster.config import CONTROL_PLANE, ClusterConfig, context_name
from weft_e2e.cluster.errors import NotRunning, Refused
from weft_e2e.cluster.paths import ClusterPaths
from weft_e2e.cluster.state import ClusterState

Progress = Callable[[str], None]


def silent(_line: str) -> None:
    """Drop a line of progress."""


def up(config: ClusterConfig, progress: Progress = silent) -> ClusterState:
    """Bring the cluster to the state that `config` asks for; what is there already is left as it is.

    A running cluster of another shape is refused, remains of a dead one are removed, and a node whose power is off is
    switched on. Returns when every node is Ready with its devices and DNS answers.
    """
    preflight.check_start()
    preflight.check_family(config.ip_family)
    paths = ClusterPaths.of(config.name)
    with state.locked(paths):
        known = state.read(paths)
        if state.member_pid(paths, CONTROL_PLANE) is not None:
            if known is None:
                raise Refused(
                    f"cluster {config.name!r} runs, but its state in {paths.state} cannot be read (an interrupted "
                    f"start, or another version of Weft): run `weft cluster down --name {config.name}` first"
                )
            return _complete(known, config, paths, progress)
        if paths.root.exists() or cgroups.find(paths.cgroup):
            progress(f"removing what is left of an earlier cluster {config.name!r}")
            _remove(paths)
        return _create(config, paths, progress)


def down(name: str) -> bool:
    """End the cluster and remove all of it; return whether there was anything."""
    paths = ClusterPaths.of(name)
    try:
        preflight.check_rights()
    except Refused:
        if paths.root.exists():
            raise
        return False  # who may not run one has none
    with state.locked(paths):
        there = paths.root.exists() or bool(cgroups.find(paths.cgroup))
        _remove(paths)
    return there


def power_off(name: str, node: str) -> None:
    """Cut the power of a node: all its processes end at once, as in a real power cut; its disk stays."""
    paths = ClusterPaths.of(name)
    with state.locked(paths):
        known = _node_of(paths, node)
        state.write(paths, known.with_power(node, on=False))
        members.stop(paths, node)


def power_on(name: str, node: str, progress: Progress = silent) -> None:
    """Switch a node on again with the disk it had; returns when it is Ready. No effect on a node that is on."""
    paths = ClusterPaths.of(name)
    with state.locked(paths):
        known = _node_of(paths, node)
        begin = 0.0
        if state.member_pid(paths, node) is None:
            begin = time.time()
            _switch_on(known, paths, [node], progress)
        readiness.await_nodes(known.config, paths, (node,), since=begin)


def node_pids(paths: ClusterPaths, config: ClusterConfig) -> dict[str, int]:
    """Return the first process of every node whose power is on."""
    found = {node: state.member_pid(paths, node) for node in config.node_names}
    return {node: pid for node, pid in found.items() if pid is not None}


def _create(config: ClusterConfig, paths: ClusterPaths, progress: Progress) -> ClusterState:
    begin = time.monotonic()
    with preflight.listen(config.api_port) as listener:
        port = int(listener.getsockname()[1])
        paths.root.mkdir(parents=True, mode=0o700)
        created = ClusterState(config=replace(config, api_port=port), api_port=port, created=time.time())
        try:
            _start_everything(created, paths, listener, progress, begin)
        except BaseException:
            # Logs are what explains a failed start; everything that runs is ended.
            cgroups.destroy(paths.cgroup)
            raise
    return created


def _start_everything(
    created: ClusterState, paths: ClusterPaths, listener: socket.socket, progress: Progress, begin: float
) -> None:
    config = created.config
    certs.write_all(paths.pki, config.node_names)
    _write_kubeconfigs(created, paths)
    members.start_control_plane(config, paths, listener)
    pause, dns = images.system_images()
    for node in config.node_names:
        members.start_node(config, paths, node, pause_image=pause.name)
    state.write(paths, created)
    readiness.await_api(paths)
    progress(f"API server ready after {time.monotonic() - begin:.1f} s")
    readiness.await_nodes(config, paths, config.node_names)
    progress(f"{config.nodes} nodes Ready after {time.monotonic() - begin:.1f} s")
    # Not earlier: until here the starting API server and kubelets need every core there is.
    _import(paths, config, [pause, dns])
    # Not before its image is there: the kubelet tries a missing one again only after 10 s.
    kubectl.apply(paths.kubeconfig, coredns.objects(dns.name, config.nodes, config.addresses.dns))
    readiness.await_dns(paths)
    progress(f"DNS ready after {time.monotonic() - begin:.1f} s")


def _complete(known: ClusterState, config: ClusterConfig, paths: ClusterPaths, progress: Progress) -> ClusterState:
    if differences := known.config.differences(config):
        raise Refused(
            f"cluster {config.name!r} runs with other values: {', '.join(differences)}. "
            f"Take it down first (`weft cluster down --name {config.name}`), or choose another --name"
        )
    off = [node for node in config.node_names if state.member_pid(paths, node) is None]
    begin = time.time()
    if off:
        known = _switch_on(known, paths, off, progress)
    readiness.await_api(paths)
    readiness.await_nodes(known.config, paths, off, since=begin)
    readiness.await_nodes(known.config, paths, config.node_names)
    if off:
        readiness.await_dns(paths)
    return known


def _switch_on(known: ClusterState, paths: ClusterPaths, nodes: list[str], progress: Progress) -> ClusterState:
    pause, dns = images.system_images()
    for node in nodes:
        progress(f"switching {node} on")
        members.stop(paths, node)  # remains of a node that was killed by other means
        members.start_node(known.config, paths, node, pause_image=pause.name)
        known = known.with_power(node, on=True)
    state.write(paths, known)
    _import(paths, known.config, [pause, dns])
    return known


def _import(paths: ClusterPaths, config: ClusterConfig, wanted: list[ImageArchive]) -> None:
    pids = node_pids(paths, config)
    readiness.await_containerd(paths, pids)
    images.import_everywhere(pids, wanted, silent)


def _write_kubeconfigs(created: ClusterState, paths: ClusterPaths) -> None:
    name = created.config.name
    inside = created.config.addresses.api_url
    for user in ("controller-manager", "scheduler", "proxy", "admin", *created.config.node_names):
        content = kubectl.kubeconfig(server=inside, pki=paths.pki, user=user, context=context_name(name))
        kubectl.write_kubeconfig(paths.root / f"{user}.kubeconfig", content)
    outside = f"https://127.0.0.1:{created.api_port}"
    content = kubectl.kubeconfig(server=outside, pki=paths.pki, user="admin", context=context_name(name))
    kubectl.write_kubeconfig(paths.kubeconfig, content)


def _node_of(paths: ClusterPaths, node: str) -> ClusterState:
    known = state.require(paths)
    if node not in known.config.node_names:
        raise NotRunning(f"no node {node!r} in cluster {paths.name!r} (there is: {', '.join(known.config.node_names)})")
    state.require_member_pid(paths, CONTROL_PLANE)
    return known


def _remove(paths: ClusterPaths) -> None:
    # It deletes a whole folder as root: only ever the one that the name leads to.
    if paths != ClusterPaths.of(paths.name):
        raise Refused(f"{paths.root} is not the folder of cluster {paths.name!r}: nothing was removed")
    cgroups.destroy(paths.cgroup)
    if paths.root.exists():
        shutil.rmtree(paths.root)
