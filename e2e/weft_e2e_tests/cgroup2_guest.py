"""Runs in a virtual machine with control groups version 2: lives of a cluster, each step reported as a line of JSON.

Every place of a machine from which a user may start a cluster gets a life of its own. What is expected is asserted in
test_cgroup2_vm.py, outside of the machine; here only what a step needs to go on is.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from weft_e2e.cluster import Cluster, archives, cgroups
from weft_e2e.cluster.paths import ClusterPaths
from weft_e2e_tests.footprint import leftovers, machine, occupied, survivors

NAME = "vm"
TOP = Path("/sys/fs/cgroup")
UP = ("up", "--gpus", "0", "--rdma", "0")
WAIT_SECONDS = 420.0  # a step that takes five seconds on a processor of its own takes a minute on an emulated one
COMMAND_SECONDS = 900.0
PLACE_SECONDS = 1500.0
CPU_LIMIT, MEMORY_LIMIT, OVER_LIMIT = "250m", "64Mi", "200M"
BUSYBOX = Path("/bin/busybox")

THIS = [sys.executable, "-m", "weft_e2e_tests.cgroup2_guest"]
# The root of the namespace is not the hierarchy's, and it holds processes: what a privileged container looks like.
CONTAINER = """
set -e
for group in /sys/fs/cgroup /sys/fs/cgroup/boxes; do
  mkdir -p "$group"
  echo '+cpu +cpuset +io +memory +pids' > "$group/cgroup.subtree_control"
done
mkdir /sys/fs/cgroup/boxes/one
echo $$ > /sys/fs/cgroup/boxes/one/cgroup.procs
exec unshare --cgroup --mount sh -ec 'umount /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup; exec "$@"' in "$@"
"""
NODES = {"root": 2, "container": 1, "service": 2, "scope": 1}
PLACES = {
    "root": THIS,
    "container": ["sh", "-c", CONTAINER, "container", *THIS],
    "service": THIS,
    "scope": ["systemd-run", "--quiet", "--scope", "--property=Delegate=yes", "--", *THIS],
}


def report(step: str, **facts: object) -> None:
    sys.stdout.write(json.dumps({"step": step, **facts}) + "\n")
    sys.stdout.flush()


@contextmanager
def timed(step: str, **facts: object) -> Iterator[dict[str, object]]:
    """Report a step with its seconds and the facts that were found."""
    begin = time.monotonic()
    yield facts
    report(step, seconds=round(time.monotonic() - begin, 1), **facts)


def eventually(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {WAIT_SECONDS:.0f} s")
        time.sleep(1)


def weft_cluster(*words: str) -> None:
    """Run `weft cluster` as a user does; its own words explain a failure."""
    command = [sys.executable, "-m", "weft_e2e.cluster", words[0], "--name", NAME, *words[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        watchdog = threading.Timer(COMMAND_SECONDS, process.kill)
        watchdog.start()
        lines = []
        for line in process.stdout or ():
            report("progress", command=words[0], line=line.rstrip())
            lines.append(line)
        watchdog.cancel()
    if process.returncode != 0:
        raise RuntimeError(f"weft cluster {' '.join(words)} ended with {process.returncode}: {''.join(lines)[-4000:]}")


def live(place: str) -> None:
    """Start a cluster from this process's group, use it, and end it."""
    paths, cluster = ClusterPaths.of(NAME), Cluster(NAME)
    report("machine", place=place, own=own_group(), kernel=os.uname().release, versions=mounted_versions())
    groups, untouched = all_groups(), machine()

    nodes = NODES[place]
    with timed("up"):
        weft_cluster(*UP, "--nodes", str(nodes))
    top = cgroups.find(paths.cgroup)
    report("nodes", ready=ready(cluster), groups=[str(group.relative_to(TOP)) for group in top], own=own_group())

    with timed("limits") as facts:
        facts |= limits(cluster, top[0] / "node-1")

    used = occupied(NAME)
    if nodes > 1:
        node_2 = cgroups.processes(cgroups.find(paths.cgroup, "node-2"))
        with timed("power-off", processes=len(node_2)) as facts:
            weft_cluster("power-off", "node-2")
            facts["groups_left"] = [str(group) for group in cgroups.find(paths.cgroup, "node-2")]
            facts["processes_left"] = sorted(pid for pid in node_2 if alive(pid))
            eventually("node-2 is not Ready", lambda: not ready(cluster)["node-2"])
            facts["nodes"] = ready(cluster)

    with timed("down", processes=len(survivors(used)), namespaces=len(used.namespaces)) as facts:
        weft_cluster("down")
        facts["left"] = leftovers(NAME, used)
        facts["groups_left"] = sorted(all_groups() - groups)
        facts["machine_untouched"] = machine() == untouched
        facts["own"] = own_group()


def limits(cluster: Cluster, node_group: Path) -> dict[str, object]:
    """Run a pod within its limits and one beyond; return what the kernel was told and what it did."""
    image = archives.single_program(cluster.paths.root, "busybox", BUSYBOX, user=65532)
    cluster.load([str(image.file)])
    cluster.kubectl("create", "--validate=false", "-f", "-", input=pod("within", image.name, ["sleep", "3600"]))
    # Reads this much into one buffer.
    hungry = ["dd", "if=/dev/zero", "of=/dev/null", f"bs={OVER_LIMIT}", "count=1"]
    cluster.kubectl("create", "--validate=false", "-f", "-", input=pod("beyond", image.name, hungry))
    eventually("the pod is Ready", lambda: phase(cluster, "within") == "Running")
    eventually("the other pod ends", lambda: phase(cluster, "beyond") in ("Failed", "Succeeded"))
    status = json.loads(cluster.kubectl("get", "pod", "beyond", "-o", "json").stdout)["status"]
    ended = status["containerStatuses"][0]["state"]["terminated"]
    return {"exit_code": ended["exitCode"], "reason": ended["reason"], "kernel": told(cluster, node_group)}


def told(cluster: Cluster, node_group: Path) -> dict[str, list[str]]:
    """Return the limits of the pod's group and of its container's, by file."""
    item = json.loads(cluster.kubectl("get", "pod", "within", "-o", "json").stdout)
    container = item["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    pod_group = next(node_group.rglob(f"pod{item['metadata']['uid']}"))
    found = [pod_group, pod_group / container]
    files = ("memory.max", "cpu.max")
    return {name: [(group / name).read_text().strip() for group in found] for name in files}


def pod(name: str, image: str, args: list[str]) -> str:
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "args": args,
        "resources": {"limits": {"cpu": CPU_LIMIT, "memory": MEMORY_LIMIT}},
    }
    spec = {
        "nodeName": "node-1",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def ready(cluster: Cluster) -> dict[str, bool]:
    return {node.name: node.ready for node in cluster.nodes()}


def phase(cluster: Cluster, name: str) -> str:
    return cluster.kubectl("get", "pod", name, "-o", "jsonpath={.status.phase}").stdout


def own_group() -> str:
    return Path("/proc/self/cgroup").read_text().strip().removeprefix("0::")


def mounted_versions() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    kinds = {line.partition(" - ")[2].split()[0] for line in lines}
    return sorted(kind for kind in kinds if kind.startswith("cgroup"))


def all_groups() -> set[str]:
    return {str(entry.relative_to(TOP)) for entry in TOP.rglob("*") if entry.is_dir()}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def main() -> int:
    """Live at one place, or at each that this machine has; a failure is a report like any other."""
    if places := sys.argv[1:]:
        live(places[0])
        return 0
    systemd = Path("/proc/1/comm").read_text().strip() == "systemd"
    for place in ("service", "scope") if systemd else ("root", "container"):
        done = subprocess.run([*PLACES[place], place], timeout=PLACE_SECONDS, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            report("failed", place=place, error=done.stderr[-6000:], logs=logs())
            return 1
    report("done")
    return 0


def logs() -> dict[str, str]:
    """Return the end of every log of the cluster."""
    files = ClusterPaths.of(NAME).root.glob("*/logs/*.log")
    return {f"{file.parent.parent.name}/{file.name}": file.read_text(errors="replace")[-1500:] for file in files}


if __name__ == "__main__":
    sys.exit(main())
