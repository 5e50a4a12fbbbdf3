"""What an engine adapter is asked, and what it answers."""

from dataclasses import dataclass, field

from weft_core.plan import Role
from weft_operator.manifest import Manifest

ENGINE_PORT = 8000
SIDE_CHANNEL_PORT = 5600
ROUTER_PORT = 8080
CONFIG_FOLDER = "/etc/weft"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """The worker an engine is started for; ``default_image`` serves where the spec names none.

    ``paired``: it hands KV to workers of the other role; ``profile_file`` is its cost profile, for the mock engine.
    """

    role: Role
    degree: int
    default_image: str
    paired: bool = True
    profile_file: str = f"{CONFIG_FOLDER}/profile.json"


@dataclass(frozen=True, slots=True)
class EngineContainer:
    """The engine's part of a worker pod; ``start_seconds`` bounds loading weights and warming up."""

    image: str
    args: tuple[str, ...]
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    secret_env: tuple[tuple[str, str, str], ...] = ()
    """Variables from Secrets: name, Secret, key."""
    volumes: tuple[Manifest, ...] = ()
    mounts: tuple[Manifest, ...] = ()
    start_seconds: int = 120
    probe_period: int = 5
    requests: dict[str, str | int] = field(default_factory=dict)
    """CPU and memory to set aside where the spec says nothing."""
