"""Run a whole service as processes on loopback: Redis, mock engines with their sidecars, and a coordinator.

The same programs as in the pods, without Kubernetes: for component tests and for trying things out. Another router can
stand in front of the same engines (``front="none"`` and ``Stack.start_front``). Everything ends with the block that
started it.
"""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import redis
from weft_core.cost import CostProfile
from weft_core.heartbeat import WorkerRecord, key_prefix, workers_key
from weft_core.keys import derive
from weft_core.layouts import ROLES, Role, WorkerRole
from weft_core.profile_json import profile_to_json
from weft_core.records import READ_WORKERS, open_heartbeats
from weft_core.worker_roles import has_duty
from weft_e2e.forked import Forked, ProcessGroup
from weft_e2e.local.fork_server import Part, Program
from weft_e2e.local.ports import free_ports
from weft_e2e.metrics import parse
from weft_e2e.replay.client import Target
from weft_e2e.stack_config import (
    HOST,
    NAMESPACE,
    REPLAY_OFFSET,
    SERVICE,
    StackConfig,
    StackWorker,
    engine_command,
    role_file,
    router_command,
    router_config,
    sidecar_command,
    workers_file,
)
from weft_e2e.waiting import until
from weft_router.ask import ask

__all__ = ["HOST", "TOKEN", "Stack", "StackConfig", "StackWorker", "engine_command", "router_config", "running"]

TOKEN = "loopback-stack-internal-token"  # noqa: S105 - guards nothing but this machine's loopback
# A worker may take one or two slow seconds of imports each on a busy machine.
START_S = 60.0


@dataclass(slots=True)
class _Process:
    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    running: subprocess.Popen[bytes] | Forked


@dataclass(slots=True)
class Stack:
    """A running stack; ``target`` is where clients send requests."""

    config: StackConfig
    target: Target
    folder: Path
    redis_port: int
    family: ProcessGroup
    engine_ports: dict[str, int] = field(default_factory=dict)
    side_ports: dict[str, int] = field(default_factory=dict)
    router_ports: dict[str, int] = field(default_factory=dict)
    events_ports: dict[str, int] = field(default_factory=dict)
    processes: dict[str, _Process] = field(default_factory=dict)

    @property
    def pids(self) -> list[int]:
        """Return the ids of all processes."""
        return [process.running.pid for process in self.processes.values()]

    def start_front(self, argv: Sequence[str], port: int, *, env: Mapping[str, str]) -> None:
        """Start another router in front of the engines; clients reach it at ``port`` from now on."""
        self._start("front", argv, env=env)
        self.target = replace(self.target, url=f"http://{HOST}:{port}")

    def metrics_pages(self) -> dict[str, str]:
        """Return the metrics pages of all routers and engines that answer."""
        pages = {}
        for name, port in self.router_ports.items():
            if (text := _get(port, "/metrics")) is not None:
                pages[name] = text
        for name, port in self.engine_ports.items():
            if (text := _get(port, "/metrics")) is not None:
                pages[f"{name}/engine"] = text
        return pages

    def debug(self, router: str, path: str) -> Any:
        """Return a debug page of a router process, decoded."""
        status, body = ask(f"http://{HOST}:{self.router_ports[router]}{path}", token=TOKEN.encode())
        if status != 200:
            raise RuntimeError(f"{router}: {path} answered {status}: {body.decode(errors='replace')}")
        return json.loads(body)

    def ledger(self, worker: str) -> dict[str, object]:
        """Return what a worker's engine counted."""
        text = _get(self.engine_ports[worker], "/mock/ledger")
        if text is None:
            raise LookupError(f"the engine of {worker} does not answer")
        ledger: dict[str, object] = json.loads(text)
        return ledger

    def assign(self, worker: str, role: WorkerRole) -> None:
        """Give a movable worker a role; it announces the role once it is in force."""
        path = self.folder / role_file(worker)
        fresh = path.with_suffix(".new")
        fresh.write_text(role)
        fresh.replace(path)

    def fault(self, worker: str, faults: Mapping[str, object]) -> None:
        """Tell a worker's engine to misbehave; an empty mapping ends it."""
        request = urllib.request.Request(
            f"http://{HOST}:{self.engine_ports[worker]}/mock/faults",
            data=json.dumps(faults).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=5):  # noqa: S310 - loopback
            pass

    def records(self) -> list[WorkerRecord]:
        """Return the heartbeats of all workers that are there."""
        with redis.Redis(host=HOST, port=self.redis_port, socket_timeout=5) as client:
            begin = f"{key_prefix(NAMESPACE, SERVICE)}worker:"
            reply: object = client.eval(READ_WORKERS, 1, workers_key(NAMESPACE, SERVICE), begin)
        key = derive((self.folder / "token").read_bytes().strip(), "state")
        return open_heartbeats(reply, key=key, namespace=NAMESPACE, service=SERVICE, now=time.time()).records

    def kill(self, name: str) -> None:
        """Kill a process at once: ``redis``, ``coordinator``, ``<worker>/engine`` or ``<worker>/router``."""
        process = self.processes[name].running
        process.kill()
        process.wait(10)

    def restart(self, name: str) -> None:
        """Start a killed process again and wait until it answers."""
        old = self.processes[name]
        self._start(name, old.argv, env=old.env)
        if name == "redis":
            self.wait_redis()
        else:
            self.wait(name)

    def wait(self, name: str) -> None:
        """Wait until a process is ready to serve."""
        worker, _, part = name.partition("/")
        port = self.engine_ports[worker] if part == "engine" else self.router_ports[worker]
        path = "/health" if part == "engine" else "/readyz"
        process = self.processes[name]
        until(
            lambda: _get(port, path) is not None or self._require_alive(process),
            what=f"{name} to be ready",
            timeout_s=START_S,
            every_s=0.1,
            last=lambda: _tail(process.log),
        )

    def wait_redis(self) -> None:
        """Wait until Redis answers."""
        until(lambda: _ping(self.redis_port), what="Redis", timeout_s=10, every_s=0.05)

    def wait_known(self) -> None:
        """Wait until the coordinator knows every worker that should run, and the decode sidecars every prefill one."""
        workers = self.config.workers
        wanted = {duty: sum(has_duty(worker.role, duty) for worker in workers) for duty in ROLES}
        sidecars = [w.name for w in workers if has_duty(w.role, "decode") and w.name in self.router_ports]

        def known() -> bool:
            pages = {name: _get(self.router_ports[name], "/metrics") or "" for name in ("coordinator", *sidecars)}
            return _ready_workers(pages["coordinator"], "decode") == wanted["decode"] and all(
                _ready_workers(page, "prefill") == wanted["prefill"] for page in pages.values()
            )

        until(known, what=f"all routers to know {wanted} workers", timeout_s=START_S, every_s=0.2)

    def _require_alive(self, process: _Process) -> bool:
        if process.running.poll() is not None:
            raise RuntimeError(f"{process.name} ended with {process.running.returncode}: {_tail(process.log)}")
        return False

    def _start(self, name: str, argv: Sequence[str], *, env: Mapping[str, str]) -> None:
        log = self.folder / f"{name.replace('/', '-')}.log"
        running: subprocess.Popen[bytes] | Forked
        if name in ("redis", "front"):
            with log.open("ab") as out:
                env = {**os.environ, **env}
                running = subprocess.Popen(argv, stdout=out, stderr=out, cwd=self.folder, env=env)
        else:
            program: Program = "mock-engine" if name.endswith("/engine") else "router"
            running = self.family.start(Part(name, program, tuple(argv), str(log), env))
        self.processes[name] = _Process(name=name, argv=argv, env=env, log=log, running=running)

    def _stop(self, *, family: bool) -> None:
        """End everything: engines first, for nobody drains for a dead one; Redis last: routers leave its list."""
        parts = [p for p in self.processes.values() if p.name != "redis"]
        _end([p for p in parts if p.name.endswith("/engine")])
        _end([p for p in parts if not p.name.endswith("/engine")])
        if family:
            self.family.end()
        _end([p for p in self.processes.values() if p.name == "redis"])


def _end(processes: Sequence[_Process]) -> None:
    """Ask processes to end, and kill those that take too long."""
    for process in processes:
        if process.running.poll() is None:
            process.running.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 3.0
    for process in processes:
        try:
            process.running.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.running.kill()
            process.running.wait(10)


@contextmanager
def running(config: StackConfig, folder: Path, *, family: ProcessGroup | None = None) -> Iterator[Stack]:
    """Start everything, yield once all is ready, and end everything.

    ``family`` is the parent of the processes, which runs in ``folder`` and outlives the stack; without it the stack
    starts one of its own, which takes a second.
    """
    ports = free_ports(2 + 3 * len(config.workers))
    redis_port, coordinator_port = ports[0], ports[1]
    stack = Stack(
        config=config,
        target=Target(url=f"http://{HOST}:{coordinator_port}", model=config.profile.model),
        folder=folder,
        redis_port=redis_port,
        family=family or ProcessGroup(folder),
    )
    with ExitStack() as ends:
        ends.callback(stack._stop, family=family is None)
        _launch(stack, coordinator_port, ports[2:])
        yield stack


def _launch(stack: Stack, coordinator_port: int, ports: Sequence[int]) -> None:
    config, folder = stack.config, stack.folder
    (folder / "token").write_text(TOKEN)
    for name, profile in {"profile.json": config.profile, **_by_file(config)}.items():
        (folder / name).write_text(json.dumps(profile_to_json(profile)))
    (folder / "router.json").write_text(json.dumps(router_config(config)))
    if config.movable:
        for worker in config.workers:
            stack.assign(worker.name, worker.role)
    if config.front == "sidecars":
        server = ["redis-server", "--port", str(stack.redis_port), "--bind", HOST, "--save", "", "--appendonly", "yes"]
        stack._start("redis", [*server, "--dir", str(folder)], env={})
        stack.wait_redis()
    for k, worker in enumerate(config.workers):
        engine, side, router = ports[3 * k : 3 * k + 3]
        stack.engine_ports[worker.name], stack.side_ports[worker.name] = engine, side
        if config.kv_events:
            stack.events_ports[worker.name] = worker.events_port or _events_port()
        if worker.engine_port:
            engine = stack.engine_ports[worker.name] = worker.engine_port
        else:
            events = stack.events_ports.get(worker.name, 0)
            stack._start(f"{worker.name}/engine", engine_command(config, worker, engine, side, events), env={})
        if config.front == "sidecars":
            stack.router_ports[worker.name] = router
            argv = sidecar_command(config, worker, router, engine)
            stack._start(f"{worker.name}/router", argv, env=_env_of(stack, worker))
    if config.front == "standalone":  # it reads its workers at the start, and probes them itself
        (folder / "workers.json").write_text(json.dumps(workers_file(config, stack.engine_ports)))
    if config.front != "none":
        stack.router_ports["coordinator"] = coordinator_port
        role = "coordinator" if config.front == "sidecars" else "standalone"
        argv = router_command(role, coordinator_port)
        if config.front == "standalone":
            argv += ["--workers", "workers.json", "--drain-seconds", str(config.drain_s)]
        stack._start("coordinator", argv, env=_router_env(stack))
    for worker in config.workers:
        if not worker.engine_port:
            stack.wait(f"{worker.name}/engine")
        if config.front == "sidecars":
            stack.wait(f"{worker.name}/router")
    if config.front != "none":
        stack.wait("coordinator")
        stack.wait_known()


def _events_port() -> int:
    """Return a free port with another free one REPLAY_OFFSET below."""
    while True:
        (port,) = free_ports(1)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port - REPLAY_OFFSET))
            except OSError:
                continue
        return port


def _by_file(config: StackConfig) -> dict[str, CostProfile]:
    return {f"profile-{pool}.json": profile for pool, profile in config.pools.items()}


def _env_of(stack: Stack, worker: StackWorker) -> dict[str, str]:
    return _router_env(stack) | {
        "WEFT_WORKER": worker.name,
        "WEFT_DEGREE": str(worker.degree),
        "WEFT_POOL": worker.pool,
        "WEFT_ROLE_FILE": str(stack.folder / role_file(worker.name)),
        "WEFT_KV_EVENTS_PORT": str(stack.events_ports.get(worker.name, 0)),
        "NODE_NAME": "loopback",
    }


def _router_env(stack: Stack) -> dict[str, str]:
    return {
        "WEFT_REDIS_URL": f"redis://{HOST}:{stack.redis_port}/0" if stack.config.front == "sidecars" else "memory://",
        "WEFT_TOKEN_FILE": str(stack.folder / "token"),
        "WEFT_REVISION": "stack",
        "POD_IP": HOST,
    }


def _get(port: int, path: str) -> str | None:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=5) as reply:
            text: str = reply.read().decode()
            return text
    except (urllib.error.URLError, OSError):
        return None


def _ready_workers(page: str, duty: Role) -> float:
    wanted = frozenset({("role", duty), ("state", "ready")})
    return parse(page).samples.get(("weft_router_workers", wanted), 0.0)


def _ping(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1) as link:
            link.sendall(b"PING\r\n")
            return link.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-1500:] if log.exists() else ""
