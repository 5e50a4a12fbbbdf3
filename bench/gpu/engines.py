"""A prefill, a decode and a plain engine of stock vLLM on one GPU, rendered as the operator renders them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.profile.engines import Pair

from weft_core.plan import Role
from weft_e2e.engines.command import HOST, command, tiny_service
from weft_e2e.engines.environment import EngineEnv
from weft_e2e.engines.process import EngineProcess, running
from weft_e2e.local.ports import free_ports
from weft_operator.api.service import DisaggInferenceService

CORE = "VLLM_CPU_OMP_THREADS_BIND"
_KEPT = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_TOKEN", "HF_HUB_OFFLINE")
_SHARE = 0.25
"""Of the GPU's memory for each of three engines."""


@dataclass(frozen=True, slots=True)
class GpuEnv(EngineEnv):
    """vLLM and a model of this machine's own, in place of those that `make engine-env` makes for CPUs."""

    program: str = ""
    served: str = ""

    @property
    def vllm(self) -> Path:
        """Return the program of ``vllm serve``."""
        return Path(self.program)

    @property
    def python(self) -> Path:
        """Return the interpreter beside it, which has torch."""
        return Path(self.program).parent / "python"

    @property
    def model(self) -> Path:
        """Return the model: a folder, or a name on the hub."""
        return Path(self.served)


@contextmanager
def trio(env: GpuEnv, folder: Path, *, context: int) -> Iterator[Pair]:
    """Run the three engines, and end them whatever happens."""
    document = tiny_service()
    spec = document["spec"]
    spec["model"] |= {"dtype": "bfloat16", "maxModelLen": context}
    spec["engine"] |= {"args": ["--seed=0"], "env": [], "memoryFraction": _SHARE}
    parsed = DisaggInferenceService.model_validate(document).spec
    ports = free_ports(6)
    engines = []
    for number, name in enumerate(("prefill", "decode", "plain")):
        home = folder / name
        home.mkdir()
        role: Role = "prefill" if name == "prefill" else "decode"
        port, side = ports[2 * number : 2 * number + 2]
        found = command(
            parsed, env, role, port=port, side_port=side, core=0, home=home, paired=name != "plain"
        )  # fmt: skip
        del found.env[CORE]  # a core of its own is for engines that compute on it
        found.env.update({variable: os.environ[variable] for variable in _KEPT if variable in os.environ})
        engines.append(EngineProcess(name, f"http://{HOST}:{port}", found, folder / f"{name}.log"))
        engines[-1].wait()  # one after the other: each looks at how much of the GPU is free when it starts
    with running(*engines):
        yield Pair(*engines)
