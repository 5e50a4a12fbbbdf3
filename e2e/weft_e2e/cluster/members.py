"""Starts and ends the members of a cluster: the control plane and the nodes."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from weft_e2e.cluster import cgroups, control_plane, node, state
from weft_e2e.cluster.config import CONTROL_PLANE, ClusterConfig, node_index
from weft_e2e.cluster.deadlines import scaled
from weft_e2e.cluster.errors import StartError
from weft_e2e.cluster.paths import ClusterPaths
from weft_e2e.cluster.specs import MemberSpec
from weft_e2e.cluster.toolchain import tool_path

LAUNCH_SECONDS = 30.0


class Launch:
    """A member that has its namespaces and waits for `go`; when this object's owner dies before, it dies too."""

    def __init__(self, member: str, spec_file: Path, log: Path, inherited: tuple[int, ...]) -> None:
        self._member = member
        self._log = log
        reading, writing = os.pipe()
        self._line = os.fdopen(writing, "w")
        try:
            self.pid = self._start(spec_file, reading, inherited)
        except BaseException:
            self._line.close()
            raise
        finally:
            os.close(reading)

    def go(self) -> None:
        """Let the member's services start."""
        try:
            self._line.write("go\n")
            self._line.close()
        except BrokenPipeError:
            raise StartError(f"{self._member} ended while it was set up:\n{_tail(self._log)}") from None

    def abandon(self) -> None:
        """End the member: it sees that nobody will say `go`."""
        self._line.close()

    def _start(self, spec_file: Path, line: int, inherited: tuple[int, ...]) -> int:
        """Start init.py; it forks the member's first process, tells its number and ends."""
        argv = [sys.executable, "-I", "-S", str(Path(__file__).with_name("init.py")), str(spec_file)]
        with self._log.open("a") as log:
            process = subprocess.Popen(
                argv,
                stdin=line,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=inherited,
                start_new_session=True,
                cwd="/",
                text=True,
            )
        with process:
            try:
                process.wait(scaled(LAUNCH_SECONDS))
            except subprocess.TimeoutExpired:
                process.kill()
                raise StartError(
                    f"{self._member}: no start within {scaled(LAUNCH_SECONDS):.0f} s; see {self._log}"
                ) from None
            told = process.stdout.readline().strip() if process.stdout else ""
        if not told.isdigit():
            raise StartError(f"{self._member} did not start:\n{_tail(self._log)}")
        return int(told)


def start_control_plane(config: ClusterConfig, paths: ClusterPaths, listener: socket.socket) -> None:
    """Start the control plane; `listener` is already bound to the machine's loopback, and is served from inside."""
    programs = control_plane.services(
        config,
        paths,
        kubernetes=str(tool_path("kubernetes")),
        forward=str(tool_path("forward")),
        python=sys.executable,
        listener=listener.fileno(),
    )
    for file, text in control_plane.disk_files(paths).items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    writes = cgroups.detect().create(paths.cgroup, CONTROL_PLANE)
    spec = control_plane.spec(config, paths, cgroup_writes=writes, programs=programs)
    _launch(paths, CONTROL_PLANE, spec, listener.fileno()).go()


def start_node(config: ClusterConfig, paths: ClusterPaths, name: str, *, pause_image: str) -> None:
    """Start a node and connect it to the control plane's bridge."""
    node.write_disk(config, paths, name, pause_image=pause_image)
    groups = cgroups.detect()
    writes = groups.create(paths.cgroup, name)
    commands = node.setup(paths, name, groups.mounts(), str(Path("/etc/resolv.conf").resolve()))
    programs = node.services(config, paths, name, kubernetes=str(tool_path("kubernetes")), python=sys.executable)
    spec = node.spec(paths, name, cgroup_writes=writes, commands=commands, programs=programs)
    launch = _launch(paths, name, spec)
    try:
        _wire(config, paths, name, launch.pid)
    except BaseException:
        launch.abandon()
        raise
    launch.go()


def stop(paths: ClusterPaths, member: str) -> None:
    """Cut a member's power: its processes end at once, and its control groups are removed."""
    cgroups.destroy(paths.cgroup, member)
    paths.record(member).unlink(missing_ok=True)


def signal_reload(paths: ClusterPaths, member: str, spec: MemberSpec) -> None:
    """Give a running member another list of services."""
    (paths.member(member) / "init-spec.json").write_text(json.dumps(spec.to_dict(), indent=1))
    os.kill(state.require_member_pid(paths, member), signal.SIGHUP)


def _launch(paths: ClusterPaths, member: str, spec: MemberSpec, *inherited: int) -> Launch:
    disk = paths.member(member)
    (disk / "logs").mkdir(parents=True, exist_ok=True)
    spec_file = disk / "init-spec.json"
    spec_file.write_text(json.dumps(spec.to_dict(), indent=1))
    return Launch(member, spec_file, paths.log(member, "init"), inherited)


def _wire(config: ClusterConfig, paths: ClusterPaths, name: str, pid: int) -> None:
    switch = state.require_member_pid(paths, CONTROL_PLANE)
    port = f"port{node_index(name)}"
    outside = [
        ["link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid)],
        ["link", "set", port, "master", "br0", "up"],
    ]
    # The kernel takes a dead node's interface away in its own time, which may be seconds.
    _ip(switch, [["link", "delete", port]])
    for where, commands in ((switch, outside), (pid, node.wiring(config, name))):
        if problem := _ip(where, commands):
            raise StartError(f"the network of {name} could not be set up: {problem}")


def _ip(pid: int, commands: list[list[str]]) -> str:
    """Run `ip` commands in the network namespace of a process; return what went wrong, or ""."""
    done = subprocess.run(
        ["nsenter", "-t", str(pid), "-n", "ip", "-batch", "-"],
        input="\n".join(" ".join(command) for command in commands),
        capture_output=True,
        text=True,
        timeout=scaled(LAUNCH_SECONDS),
    )
    return done.stderr.strip() if done.returncode != 0 else ""


def _tail(log: Path, lines: int = 15) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return f"(no {log})"
