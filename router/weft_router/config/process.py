"""The settings of one router process, from flags, environment and files; every error names the fix."""

import os
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from weft_core.authority import http_url, is_http_url, split_authority
from weft_core.cost import CostProfile
from weft_core.heartbeat import MAX_NAME, is_worker_name
from weft_core.layouts import WorkerRole
from weft_core.parallelism import Degree, parse_degree
from weft_router.config.file import RouterConfig
from weft_router.config.live import LiveConfig, combined
from weft_router.config.role_file import read_role
from weft_router.config.section import ConfigError
from weft_router.config.server import FRONT_ROLES
from weft_router.config.workers import WorkerEntry, read_workers

Role = Literal["coordinator", "standalone", "epp"] | WorkerRole
"""``epp``: an endpoint picker, which chooses workers for a gateway's proxy."""
FlagRole = Role | Literal["worker", "gateway"]
"""``worker``: a sidecar whose role is in a file, and may change; ``gateway`` has settings of another kind."""

MIN_KV_EVENTS_PORT = 1124
"""Engines answer requests for earlier KV events 100 ports below, which must not be privileged ones."""


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line of one router process says."""

    role: FlagRole
    config: Path
    listen: str
    engine_url: str
    advertise: str | None
    drain_seconds: float
    workers: Path | None = None
    processes: int = 1
    health_listen: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything one router process needs to know about itself; ``pools`` are profiles by pool, where they differ.

    A worker's ``role`` is the one that it starts with.
    """

    role: Role
    config: RouterConfig
    profile: CostProfile
    host: str
    port: int
    token: bytes = field(repr=False)
    redis_url: str = field(repr=False)
    worker: str
    degree: Degree
    pool: str
    revision: str
    url: str
    node: str
    instance_id: str
    engine_url: str
    drain_s: float
    api_keys_file: Path | None
    pools: Mapping[str, CostProfile] = field(default_factory=dict)
    workers: tuple[WorkerEntry, ...] = ()
    """The engines that a standalone router stands in front of."""
    processes: int = 1
    health_host: str = ""
    health_port: int = 0
    """Where health and metrics are served without TLS beside the main port; 0: nowhere else."""
    config_file: Path = Path()
    live_file: Path | None = None
    """What of the configuration may change while the process runs, if that has a file of its own."""
    place: int = 0
    """This process's number among those that share the port."""
    family: Path | None = None
    """The folder where they meet; None for a process by itself."""
    node_rank: int = 0
    """Which of its worker's nodes this pod is; 0 leads, and speaks for the worker."""
    leader: str = ""
    """URL of the leader's sidecar, for those of other nodes."""
    engine_proof: str = field(default="", repr=False)
    """The word by which an engine's plug-in knows its router; empty where the engine asks for none."""
    role_file: Path | None = None
    """Where the worker's role is read while it runs; None: its role is fixed."""
    kv_port: int = 0
    """Where engines of the service meet to hand KV over, tried from pod to pod; 0: not tried."""
    kv_transport: str = ""
    """What has to carry KV, where the pods have it: rdma; empty where anything may."""
    kv_disk_port: int = 0
    """Where the sidecar that keeps a tier on a disk in order reports, on loopback; 0: there is none."""
    kv_events_port: int = 0
    """Where the engine's first rank sends its KV events; 0: it sends none."""

    @property
    def key_classes(self) -> Collection[str]:
        """Return the classes of requests that a key may name."""
        return self.config.qos.known()

    def live(self) -> LiveConfig:
        """Return what follows changes of the configuration."""
        return LiveConfig(self.config_file, self.live_file, self.config)

    def profile_of(self, pool: str) -> CostProfile:
        """Return what the workers of a pool cost; those of a pool that is no longer planned as this one does."""
        return self.pools.get(pool, self.profile)

    @property
    def kv_capacity_tokens(self) -> int:
        """Return how many tokens of KV this worker holds according to the profile; 0 without a degree."""
        return self.profile.kv_capacity(self.degree) if self.degree else 0


def load(flags: Flags, env: Mapping[str, str] = os.environ) -> Settings:
    """Put flags, environment and files together.

    Raises:
        ConfigError: something is missing or wrong; the message says what to set.
    """
    role, role_file = _role(flags.role, env)
    live = Path(env["WEFT_LIVE_FILE"]) if env.get("WEFT_LIVE_FILE") else None
    over = None if live is None else read_file(live, "WEFT_LIVE_FILE")
    config = combined(read_file(flags.config, "--config"), over, source=str(live or flags.config))
    pool = env.get("WEFT_POOL", "")
    pools = config.pool_profiles()
    profile = pools[pool] if pool in pools else config.cost_profile()
    host, port = listen_address(flags.listen, "--listen")
    health = ("", 0) if flags.health_listen is None else listen_address(flags.health_listen, "--health-listen")
    if role == "epp" and not health[1]:
        raise ConfigError("--health-listen: an endpoint picker serves health and metrics beside gRPC; pass [::]:8080")
    worker, degree, url = _identity(role, flags.advertise, env, port)
    if degree and degree not in profile.degrees:
        known = ", ".join(str(d) for d in sorted(profile.degrees))
        raise ConfigError(
            f"WEFT_DEGREE={degree}: the profile of {profile.gpu} knows only degree {known}; set one of these"
        )
    node_rank, leader = _node(role, env)
    keys = env.get("WEFT_API_KEYS_FILE") or config.auth.api_keys_file
    alone = role == "standalone"
    redis_url = _redis_url(env, alone=alone)
    random_token = alone and "WEFT_TOKEN_FILE" not in env
    if random_token and not redis_url.startswith("memory://"):
        raise ConfigError(
            "WEFT_TOKEN_FILE: what a standalone router keeps in Redis is authenticated by its token; write a "
            "random one, the same for all that share the Redis"
        )
    return Settings(
        role=role,
        config=config,
        profile=profile,
        host=host,
        port=port,
        token=secrets.token_bytes(32) if random_token else _token(env),
        redis_url=redis_url,
        worker=worker,
        degree=degree,
        pool=pool,
        revision=env.get("WEFT_REVISION", config.plan_revision),
        url=url,
        node=env.get("NODE_NAME", ""),
        instance_id=secrets.token_hex(8),
        engine_url=flags.engine_url.rstrip("/"),
        drain_s=flags.drain_seconds,
        api_keys_file=Path(keys) if keys else None,
        pools=pools,
        workers=_workers(flags, profile, pools),
        processes=flags.processes,
        health_host=health[0],
        health_port=health[1],
        config_file=flags.config,
        live_file=live,
        node_rank=node_rank,
        leader=leader,
        role_file=role_file,
        engine_proof=_engine_proof(env),
        kv_port=_port(env, "WEFT_KV_PORT", "the port of the engines' side channel, or 0 to try none"),
        kv_transport=_kv_transport(env),
        kv_disk_port=_port(env, "WEFT_KV_DISK_PORT", "the port of the pod's kv-disk sidecar, or 0 without one"),
        kv_events_port=0 if role in FRONT_ROLES else _kv_events_port(env),
    )


def _workers(flags: Flags, profile: CostProfile, pools: Mapping[str, CostProfile]) -> tuple[WorkerEntry, ...]:
    if flags.role != "standalone":
        return ()
    if flags.workers is None:
        raise ConfigError("--workers: a standalone router needs the file that names its engines; pass it")
    entries = read_workers(read_file(flags.workers, "--workers"), source=str(flags.workers))
    folder = flags.workers.parent
    entries = tuple(
        entry if entry.role_file is None else entry.model_copy(update={"role_file": folder / entry.role_file})
        for entry in entries
    )
    for entry in entries:
        degrees = pools.get(entry.pool, profile).degrees
        if entry.degree not in degrees:
            known = ", ".join(str(d) for d in sorted(degrees))
            raise ConfigError(
                f"{flags.workers}: {entry.name}.degree: the profile knows only degree {known}; set one of these"
            )
    return entries


def _role(role: FlagRole, env: Mapping[str, str]) -> tuple[Role, Path | None]:
    """Return the role that the process starts with, and the file that changes it."""
    if role == "gateway":
        raise ConfigError("--role gateway: has a configuration of another kind, gateway.json")
    if role != "worker":
        return role, None
    path = env.get("WEFT_ROLE_FILE")
    if not path:
        raise ConfigError("WEFT_ROLE_FILE: --role worker reads its role from a file; name it, or pass a fixed role")
    return read_role(Path(path)), Path(path)


def _identity(role: Role, advertise: str | None, env: Mapping[str, str], port: int) -> tuple[str, Degree, str]:
    if role in FRONT_ROLES:
        return env.get("POD_NAME", role), 0, ""
    worker = env.get("WEFT_WORKER")
    if not worker:
        raise ConfigError(f"WEFT_WORKER: a {role} sidecar needs the name of its worker; set it")
    if not is_worker_name(worker):
        raise ConfigError(
            f"WEFT_WORKER={worker[:64]!r}: a worker's name has letters, digits, dots, dashes and underscores, "
            f"{MAX_NAME} at most, and begins and ends with a letter or digit; set such a one"
        )
    try:
        degree = parse_degree(env.get("WEFT_DEGREE", ""))
    except ValueError as error:
        raise ConfigError(f"WEFT_DEGREE: {error}") from None
    ip = env.get("POD_IP")
    if advertise is None and not ip:
        raise ConfigError("POD_IP: other pods must find this worker; set POD_IP or pass --advertise URL")
    url = (advertise or http_url(ip or "", port)).rstrip("/")
    if not is_http_url(url) or not url.startswith("http://") or set(url[7:]) & set("/?#@\\"):
        raise ConfigError(f"--advertise {url}: give a URL such as http://10.0.0.7:8080 or http://[fd00::7]:8080")
    return worker, degree, url


def _node(role: Role, env: Mapping[str, str]) -> tuple[int, str]:
    """Return the rank of this pod among the nodes of its worker, and where the leader's sidecar is."""
    rank = env.get("WEFT_NODE_RANK", "0")
    if role in FRONT_ROLES or rank == "0":
        return 0, ""
    if not rank.isdigit():
        raise ConfigError(f"WEFT_NODE_RANK={rank!r}: set the pod's number among its worker's nodes, 0 for the leader")
    leader = env.get("WEFT_LEADER_URL", "")
    if not is_http_url(leader) or not leader.startswith("http:"):
        raise ConfigError(
            "WEFT_LEADER_URL: a node that does not lead must find the one that does; set http://HOST:8080"
        )
    return int(rank), leader


def listen_address(value: str, flag: str) -> tuple[str, int]:
    """Return the host and port of a flag.

    Raises:
        ConfigError: it names none.
    """
    try:
        return split_authority(value)
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}; [::]:8080 is every address") from error


def _redis_url(env: Mapping[str, str], *, alone: bool) -> str:
    """Return the URL of Redis: from the file that holds one with a password, or from the environment."""
    path = env.get("WEFT_REDIS_URL_FILE")
    if path:
        return read_file(Path(path), "WEFT_REDIS_URL_FILE").decode("utf-8", "replace").strip()
    return env.get("WEFT_REDIS_URL", "memory://" if alone else "redis://weft-redis.weft-system:6379/0")


def _token(env: Mapping[str, str]) -> bytes:
    path = env.get("WEFT_TOKEN_FILE", "/etc/weft-token/token")
    token = read_file(Path(path), "WEFT_TOKEN_FILE").strip()
    if len(token) < 16:
        raise ConfigError(
            f"WEFT_TOKEN_FILE={path}: the internal token needs at least 16 characters; write a random one"
        )
    return token


def _engine_proof(env: Mapping[str, str]) -> str:
    path = env.get("WEFT_ENGINE_PROOF_FILE")
    if not path:
        return ""
    word = read_file(Path(path), "WEFT_ENGINE_PROOF_FILE").strip()
    if not re.fullmatch(rb"[!-~]{16,1024}", word):
        raise ConfigError(
            f"WEFT_ENGINE_PROOF_FILE={path}: 16 to 1024 printable ASCII characters without spaces are needed; "
            "write a random word, the same as the engine's"
        )
    return word.decode("ascii")


def _port(env: Mapping[str, str], variable: str, fix: str) -> int:
    port = env.get(variable, "0")
    if not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{variable}={port!r}: set {fix}")
    return int(port)


def _kv_events_port(env: Mapping[str, str]) -> int:
    port = env.get("WEFT_KV_EVENTS_PORT", "0")
    if not port.isdigit() or (int(port) and not MIN_KV_EVENTS_PORT <= int(port) <= 65535):
        raise ConfigError(
            f"WEFT_KV_EVENTS_PORT={port!r}: set the port to which the engine sends its KV events, "
            f"{MIN_KV_EVENTS_PORT} to 65535, or 0 where it sends none"
        )
    return int(port)


def _kv_transport(env: Mapping[str, str]) -> str:
    transport = env.get("WEFT_KV_TRANSPORT", "")
    if transport not in ("", "rdma"):
        raise ConfigError(f"WEFT_KV_TRANSPORT={transport!r}: set rdma, or nothing where anything may carry KV")
    return transport


def read_file(path: Path, field: str) -> bytes:
    """Return what is in a file that ``field`` names.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{field}={path}: cannot be read ({error.strerror}); check the path") from error
