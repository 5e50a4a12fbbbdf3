"""Install the peers from the package index, each into an environment of its own, and say how each is started."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.router.compiled import BenchError, folder
from bench.router.engines import Engines
from bench.router.processes import HOST

INSTALL_S = 600.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A router of the package index, pinned, with the program it brings."""

    name: str
    version: str
    program: tuple[str, ...]

    @property
    def home(self) -> Path:
        return folder() / f"{self.name}-{self.version}"

    def installed(self) -> list[str]:
        """Return the start of its command line; it is installed when it is not yet.

        Raises:
            BenchError: the package index cannot be reached or has no build for this machine.
        """
        path = self.home / "bin" / self.program[0]
        if not path.exists():
            self._install()
        return [str(path), *self.program[1:]]

    def _install(self) -> None:
        pinned = f"{self.name}=={self.version}"
        commands = (
            [sys.executable, "-m", "venv", "--clear", str(self.home)],
            [str(self.home / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", pinned],
        )
        for command in commands:
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
            except subprocess.TimeoutExpired as error:
                raise BenchError(f"{pinned} could not be installed within {INSTALL_S:g} s") from error
            if done.returncode:
                last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
                raise BenchError(f"{pinned} cannot be installed here: {''.join(last)[:300]}")


VLLM = Peer("vllm-router", "0.1.17", ("vllm-router",))
SGLANG = Peer("sglang-router", "0.3.2", ("sglang-router", "launch"))
QUIET = {"HF_ENDPOINT": f"http://{HOST}:9", "HF_HUB_OFFLINE": "1"}
"""sglang-router asks a model hub for the tokenizer of a model it does not know; nobody listens at the discard port."""


def vllm_command(engines: Engines, port: int, spare: int) -> list[str]:
    """Return vllm-router's command line: P/D mode, its cheapest policy, no pause before it serves."""
    argv = [*VLLM.installed(), "--vllm-pd-disaggregation", "--log-level", "warning"]
    argv += [word for at in engines.prefill for word in ("--prefill", f"http://{HOST}:{at}")]
    return [*argv, *_common(engines.decode, port, spare)]


def sglang_command(engines: Engines, port: int, spare: int) -> list[str]:
    """Return sglang-router's command line: P/D mode, its cheapest policy, no pause before it serves."""
    argv = [*SGLANG.installed(), "--pd-disaggregation", "--log-level", "warn"]
    argv += [word for at in engines.prefill for word in ("--prefill", f"http://{HOST}:{at}", str(at))]
    return [*argv, *_common(engines.decode, port, spare)]


def _common(decode: Sequence[int], port: int, spare: int) -> list[str]:
    argv = [word for at in decode for word in ("--decode", f"http://{HOST}:{at}")]
    argv += ["--host", HOST, "--port", str(port), "--policy", "round_robin", "--worker-startup-check-interval", "1"]
    return [*argv, "--prometheus-host", HOST, "--prometheus-port", str(spare)]
