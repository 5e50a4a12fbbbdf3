"""Install the peers from the package index, each into an environment of its own, and say how each is started."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.router.compiled import BenchError, folder
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
CHEAPEST = "round_robin"
"""The policy that costs the peers least."""


@dataclass(frozen=True, slots=True)
class Backends:
    """The ports of engines to stand in front of, on loopback; without ``prefill`` every engine does both.

    ``bootstrap`` is where each prefill engine of SGLang meets its readers, by default its own port.
    """

    prefill: Sequence[int]
    decode: Sequence[int]
    bootstrap: Sequence[int] = ()


def vllm_command(engines: Backends, port: int, spare: int, *, policy: str = CHEAPEST) -> list[str]:
    """Return vllm-router's command line: P/D mode where there are prefill engines, no pause before it serves."""
    argv = [*VLLM.installed(), "--log-level", "warning"]
    if engines.prefill:
        argv.append("--vllm-pd-disaggregation")
        argv += [word for at in engines.prefill for word in ("--prefill", f"http://{HOST}:{at}")]
    return [*argv, *_common(engines, port, spare, policy)]


def sglang_command(engines: Backends, port: int, spare: int, *, policy: str = CHEAPEST) -> list[str]:
    """Return sglang-router's command line: P/D mode where there are prefill engines, no pause before it serves."""
    argv = [*SGLANG.installed(), "--log-level", "warn"]
    if engines.prefill:
        argv.append("--pd-disaggregation")
        pairs = zip(engines.prefill, engines.bootstrap or engines.prefill, strict=True)
        argv += [word for at, meets in pairs for word in ("--prefill", f"http://{HOST}:{at}", str(meets))]
    return [*argv, *_common(engines, port, spare, policy)]


def _common(engines: Backends, port: int, spare: int, policy: str) -> list[str]:
    urls = [f"http://{HOST}:{at}" for at in engines.decode]
    argv = [word for url in urls for word in ("--decode", url)] if engines.prefill else ["--worker-urls", *urls]
    argv += ["--host", HOST, "--port", str(port), "--policy", policy, "--worker-startup-check-interval", "1"]
    return [*argv, "--prometheus-host", HOST, "--prometheus-port", str(spare)]
