"""What one real engine of this machine is started with: the operator's own rendering, with this machine's addresses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft_core.parallelism import Degree, parallelism_of
from weft_core.plan import Role
from weft_e2e.engines.environment import EngineEnv
from weft_operator.api.engine_merge import engine_of_role
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.engines import vllm
from weft_operator.render.engines.container import ENGINE_PORT, SIDE_CHANNEL_PORT, EngineRequest

TINY = Path(__file__).with_name("tiny.yaml")
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Command:
    """The words and the environment of a process."""

    argv: tuple[str, ...]
    env: dict[str, str]


def command(
    spec: DisaggInferenceServiceSpec, env: EngineEnv, role: Role, *, port: int, side_port: int, core: int,
    home: Path, paired: bool = True, degree: Degree = 1,
) -> Command:  # fmt: skip
    """Return how a worker's engine is started here; ``paired`` as in a plan with workers of both roles.

    Other than in a pod are: where program and model lie, the addresses, its home, and the one core it runs on, with all
    its data-parallel ranks. Their side channels are at ``side_port`` and the ports after it.
    """
    found = vllm.build_container(spec, EngineRequest(role=role, degree=degree, default_image="", paired=paired))
    own = {str(ENGINE_PORT): str(port), str(SIDE_CHANNEL_PORT): str(side_port), "$(POD_IP)": HOST}
    _, *args = found.args
    args = [f"--port={port}" if arg == f"--port={ENGINE_PORT}" else arg for arg in args]
    variables = {name: own.get(value, value) for name, value in found.env}
    variables |= {variable.name: variable.value for variable in engine_of_role(spec.engine, role).env}
    variables |= {
        "HOME": str(home),
        "VLLM_CACHE_ROOT": str(env.cache),
        "VLLM_CPU_OMP_THREADS_BIND": "|".join([str(core)] * parallelism_of(degree).dp),
        "PATH": f"{env.vllm.parent}:/usr/local/bin:/usr/bin:/bin",
    }
    _, verb = found.command
    return Command((str(env.vllm), verb, str(env.model), *args), variables)


def tiny_service() -> dict[str, Any]:
    """Return the manifest of the tiny service."""
    import yaml

    found: dict[str, Any] = yaml.safe_load(TINY.read_text())
    return found
