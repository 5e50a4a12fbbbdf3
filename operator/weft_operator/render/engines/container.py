"""What an engine adapter is asked, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft_core.parallelism import Degree, parallelism_of
from weft_core.plan import Role, WorkerRole
from weft_operator.api.objects import Manifest, ServiceKey

ENGINE_PORT = 8000
SIDE_CHANNEL_PORT = 5600
BOOTSTRAP_PORT = 8998
"""SGLang's default; the router's, too."""
DATA_PORTS = (32768, 60999)
"""Where transfer libraries listen without RDMA: a port of the kernel's own choice (Linux' ip_local_port_range)."""
RENDEZVOUS_PORT = 29500
"""Where the engine of a worker's first node waits for those of the others."""
ROUTER_PORT = 8080
CONFIG_FOLDER = "/etc/weft"
PROOF_VARIABLE = "WEFT_ENGINE_PROOF_FILE"
"""Names the file with the word by which an engine's plug-in knows the router: at both of them."""
PROOF_VOLUME = "engine-proof"
PROOF_KEY = "engine-proof"
"""Where that word is in the Secret of the service's token."""
RANK_VARIABLE = "WEFT_NODE_RANK"
"""Which of its worker's nodes a pod is, where there are several; 0 leads."""
LEADER_VARIABLE = "WEFT_LEADER"
"""The host name of the pod that leads."""
RANK = f"$({RANK_VARIABLE})"
LEADER = f"$({LEADER_VARIABLE})"
"""How arguments name both."""
FIND_LEADER = (
    f"until leader=$(python3 -c 'import os, socket; "
    f'print(socket.getaddrinfo(os.environ["{LEADER_VARIABLE}"], None)[0][4][0])\' 2>/dev/null); do sleep 1; done'
)
"""Shell code that waits for the leader's address: older ZeroMQ binds to no names, and it connects to those of IPv4."""
LOOPBACK = "127.0.0.1"
"""Where engines listen that only their sidecar reaches. Pods have it whatever families of addresses they have besides:
the kernel gives it to their loopback device."""


_NO_SERVICE = ServiceKey("", "")


@dataclass(frozen=True, slots=True)
class PodTiers:
    """What the KV cache tiers of an engine take of each of its pods."""

    memory: int = 0
    """Bytes on top of the container's memory."""
    shared_memory: int = 0
    """Bytes of these in /dev/shm."""
    folder: str = ""
    """The folder of its files, "" where it has none."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """The worker an engine is started for; ``default_image`` serves where the spec names none.

    ``role``: both where the engine serves either role. ``paired``: it hands KV to workers of the other role;
    ``profile_file`` is its cost profile, for the mock engine.
    ``nodes``: how many it spans; its pods then know the variables above. ``secret``: that of the service's token.
    ``service``: whose weights it loads, where they are cached.
    """

    role: WorkerRole
    degree: Degree
    default_image: str
    paired: bool = True
    nodes: int = 1
    secret: str = ""
    service: ServiceKey = _NO_SERVICE
    revision: str = ""
    """What workers share that exchange KV (``Rendering.revision``): KV of another one is of no use."""
    profile_file: str = f"{CONFIG_FOLDER}/profile.json"

    @property
    def settings_role(self) -> Role:
        """Return the role whose settings the engine has; those of both roles are the same where it serves either."""
        return "prefill" if self.role == "prefill" else "decode"

    @property
    def ranks_per_node(self) -> int:
        """Return how many data-parallel ranks lie on each node of a worker on several, 0 where it has no ranks."""
        ranks = parallelism_of(self.degree).dp
        return ranks // self.nodes if self.nodes > 1 and ranks > 1 else 0


@dataclass(frozen=True, slots=True)
class EngineContainer:
    """The engine's part of a worker pod; ``start_seconds`` bounds loading weights and warming up."""

    image: str
    args: tuple[str, ...]
    command: tuple[str, ...] = ()
    host: str = LOOPBACK
    """Where the sidecar reaches the API: an address of IPv4, or a name."""
    ports: tuple[tuple[str, int], ...] = (("kv", SIDE_CHANNEL_PORT),)
    """Ports with a fixed number that engines of the other role connect to: name and number."""
    env: tuple[tuple[str, str], ...] = ()
    secret_env: tuple[tuple[str, str, str], ...] = ()
    """Variables from Secrets: name, Secret, key."""
    volumes: tuple[Manifest, ...] = ()
    mounts: tuple[Manifest, ...] = ()
    start_seconds: int = 120
    probe_period: int = 5
    side_channel_port: int = 0
    """The port of the engine that sidecars of the other role try; 0 where they try none."""
    kv_events_port: int = 0
    """Where the sidecar listens for the KV events of the first rank; 0 where none come."""
    log_on_failure: bool = True
    """Whether the kubelet keeps the end of its log when it fails, for what the operator says of it."""
    requests: dict[str, str | int] = field(default_factory=dict)
    """CPU and memory to set aside where the spec says nothing."""
    tiers: PodTiers = PodTiers()


@dataclass(frozen=True, slots=True)
class KvPorts:
    """What engines of one role let those of the other connect to: single ports, and ranges (first, last)."""

    single: tuple[int, ...] = ()
    spans: tuple[tuple[int, int], ...] = (DATA_PORTS,)


def given_flags(values: Mapping[str, object]) -> list[str]:
    """Return the flags whose values are given; for the others the engine has defaults of its own."""
    return [f"--{flag}={value}" for flag, value in values.items() if value is not None]
