"""Real engines of this machine for a bench: those of the tiny service, a core each, without a router."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft_core.plan import Role
from weft_e2e.engines.command import HOST, command, tiny_service
from weft_e2e.engines.environment import EngineEnv, environment
from weft_e2e.engines.process import EngineProcess, running
from weft_e2e.local.ports import free_ports
from weft_operator.api.service import DisaggInferenceService


class NoEnginesError(Exception):
    """Report that there is nothing to run engines from, and what to do."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A prefill and a decode engine that read each other's KV, and a plain one where it was asked for."""

    prefill: EngineProcess
    decode: EngineProcess
    plain: EngineProcess | None = None


def made() -> EngineEnv:
    """Return what engines run from.

    Raises:
        NoEnginesError: it was not made.
    """
    env = environment()
    if not env.there:
        raise NoEnginesError("there is no engine to run; `make engine-env` makes it")
    return env


@contextmanager
def pair(folder: Path, *, plain: bool = False) -> Iterator[Pair]:
    """Run the engines of the tiny service, and end them whatever happens."""
    env = made()
    document = tiny_service()
    ports = free_ports(6)
    engines = [
        _engine(env, document, folder, name, ports[2 * number : 2 * number + 2], core=core)
        for number, (name, core) in enumerate([("prefill", 0), ("decode", 1), *([("plain", 1)] if plain else [])])
    ]
    with running(*engines):
        yield Pair(*engines)


def _engine(
    env: EngineEnv, document: dict[str, Any], folder: Path, name: str, ports: Sequence[int], *, core: int
) -> EngineProcess:
    home = folder / name
    home.mkdir()
    role: Role = "prefill" if name == "prefill" else "decode"
    spec = DisaggInferenceService.model_validate(document).spec
    found = command(
        spec, env, role, port=ports[0], side_port=ports[1], core=core, home=home, paired=name != "plain"
    )  # fmt: skip
    return EngineProcess(name, f"http://{HOST}:{ports[0]}", found, folder / f"{name}.log")
