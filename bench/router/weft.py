"""Write the files of a Weft service over mock engines and start its routers: standalone, or as sidecars."""

import json
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.router.compiled import BenchError
from bench.router.engines import Engines
from bench.router.processes import HOST, Cores, Process, start, wait_for

MODEL = "bench/model"
PREFILL_DEGREE, DECODE_DEGREE = 1, 2
CONCURRENCY = 64
"""Prefills at once on one engine: the peers do not bound them, so that the bound must not be what is measured."""
TTFT_S = 120.0
"""So long that thousands of streams that begin at once do not make the policy doubt its predictions."""
WAITING = 20_000
"""Requests without a first byte: 5,000 streams may begin at once, and the peers do not bound them either."""

PROFILE = {
    "model": MODEL,
    "gpu": "none",
    "engine": "bench",
    "kvBytesPerToken": 1024,
    "degrees": [
        {
            "degree": degree,
            "weightBytesPerGpu": 1,
            "kvCapacityTokens": 10**12,
            "prefill": [{"alpha": alpha, "perToken": 1e-9, "perPair": 0.0, "perContextToken": 0.0}],
            "decode": [{"alpha": 1e-4, "perSequence": 1e-9, "perContextToken": 0.0}],
        }
        for degree, alpha in ((PREFILL_DEGREE, 1e-5), (DECODE_DEGREE, 0.5))
    ],
    "transfers": [
        {"source": a, "destination": b, "link": "inter-node", "alpha": 1e-5, "perToken": 1e-10}
        for a in (PREFILL_DEGREE, DECODE_DEGREE)
        for b in (PREFILL_DEGREE, DECODE_DEGREE)
    ],
    "provenance": {},
}
"""Prefill workers that are fast and decode workers that are slow at prefills: the policy sends every round to both
legs, as the peers do, though it weighs the decode worker each time."""


@dataclass(frozen=True, slots=True)
class Files:
    """What a service's routers read."""

    folder: Path
    key: str
    compiled: Path | None = None
    """The modules that routers run with, None for the sources as they are."""

    @property
    def env(self) -> dict[str, str]:
        return {
            **({} if self.compiled is None else {"PYTHONPATH": str(self.compiled)}),
            "WEFT_API_KEYS_FILE": str(self.folder / "api-keys"),
            "WEFT_TOKEN_FILE": str(self.folder / "token"),
            "WEFT_REDIS_URL": "memory://",
            "POD_IP": HOST,
        }


def written(folder: Path, compiled: Path | None = None) -> Files:
    """Write router.json, 100 API keys and the internal token; return where they are, and one of the keys."""
    config = {
        "service": "bench",
        "namespace": "loopback",
        "model": {"name": MODEL, "maxModelLen": 1_000_000},
        "engine": {"type": "vllm", "bidirectional": False},
        "slo": {"ttft": TTFT_S, "itl": 0.05},
        # Sliced local prefills (mode imd) of such short prompts would be worth their while now and then.
        "routing": {"policy": "weft", "mode": "ia", "prefillConcurrency": CONCURRENCY, "prefillQueueLimit": WAITING},
        "qos": {"maxWaiting": WAITING},
        "profile": PROFILE,
        "planRevision": "bench",
    }
    (folder / "router.json").write_text(json.dumps(config))
    keys = [secrets.token_hex(16) for _ in range(100)]
    (folder / "api-keys").write_text("\n".join(keys))
    (folder / "token").write_text(secrets.token_hex(16))
    return Files(folder, keys[50], compiled)


def workers(engines: Engines) -> dict[str, list[dict[str, object]]]:
    """Return the file of a standalone router's workers."""
    sides = (("prefill", engines.prefill, PREFILL_DEGREE), ("decode", engines.decode, DECODE_DEGREE))
    return {
        "workers": [
            {"name": f"{role[0]}{i}", "role": role, "url": f"http://{HOST}:{port}", "degree": degree}
            for role, ports, degree in sides
            for i, port in enumerate(ports)
        ]
    }


def standalone_command(files: Files, engines: Engines, port: int, *, processes: int = 1) -> list[str]:
    """Return the command line of the router in one process, or in several that share its port."""
    path = files.folder / "workers.json"
    path.write_text(json.dumps(workers(engines)))
    argv = [*_router(files, "standalone", port), "--workers", str(path)]
    return [*argv, "--processes", str(processes)] if processes > 1 else argv


def _router(files: Files, role: str, port: int) -> list[str]:
    argv = [sys.executable, "-m", "weft_router", "--role", role, "--config", str(files.folder / "router.json")]
    return [*argv, "--listen", f"{HOST}:{port}", "--log-level", "warning"]


@contextmanager
def sidecars(files: Files, engines: Engines, cores: Cores) -> Iterator[tuple[int, Sequence[Process]]]:
    """Give a coordinator with one decode and one prefill sidecar: its port, and the three processes.

    Raises:
        BenchError: there is no redis-server, or one of the processes does not start.
    """
    redis = shutil.which("redis-server")
    if redis is None:
        raise BenchError("sidecars share a Redis: install one (Debian: apt-get install redis-server)")
    store, front, *ports = free_ports(4)
    env = {**files.env, "WEFT_REDIS_URL": f"redis://{HOST}:{store}/0"}
    with ExitStack() as ends:

        def begin(name: str, argv: Sequence[str], more: dict[str, str], *, on: Sequence[int]) -> Process:
            process = start(name, argv, on=on, log=files.folder / f"{name}.log", env={**env, **more})
            ends.callback(process.stop)
            return process

        argv = [redis, "--port", str(store), "--bind", HOST, "--save", "", "--appendonly", "no"]
        begin("redis", [*argv, "--dir", str(files.folder)], {}, on=cores.load)
        found = []
        sides = (("prefill", engines.prefill[0], PREFILL_DEGREE), ("decode", engines.decode[0], DECODE_DEGREE))
        for (role, engine, degree), port in zip(sides, ports, strict=True):
            argv = [*_router(files, role, port), "--engine-url", f"http://{HOST}:{engine}"]
            known = {"WEFT_WORKER": f"{role[0]}-0", "WEFT_DEGREE": str(degree)}
            found.append(begin(role, argv, known, on=cores.router))
        found.append(begin("coordinator", _router(files, "coordinator", front), {}, on=cores.router))
        for process, port in zip(found, (*ports, front), strict=True):
            wait_for(process, "/readyz", port)
        yield front, found


def free_ports(count: int) -> list[int]:
    """Return so many ports nobody listens at."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in sockets]
