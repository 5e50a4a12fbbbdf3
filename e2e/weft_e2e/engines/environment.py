"""Make what real engines run from, once per version: vLLM's CPU build with NIXL, and a tiny model. All in the cache.

The folder is mounted read-only into engine pods too, at any path: its interpreter is Debian's own, which the image
has, and its programs find their neighbours relative to themselves.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from weft_e2e.cluster import packages
from weft_e2e.cluster.errors import SetupError
from weft_e2e.cluster.paths import cache_root
from weft_e2e.images.catalogue import repository_root

VLLM_VERSION = "0.32.0"
OLDER = ("0.30.0", "0.31.0")
"""Versions that only the plug-in is tested with, beside ``VLLM_VERSION``: `make test-plugin`."""
VERSION_VARIABLE = "WEFT_VLLM_VERSION"
INTERPRETER = Path("/usr/bin/python3.11")
NEEDED_GIB = 9.0
"""The environment takes 6.5 GiB, and the downloads of the moment lie beside it."""
INSTALL_S = 1500.0
MODEL_S = 300.0
_NOTE = """
from vllm.model_executor.models.registry import ModelRegistry
ModelRegistry.models["LlamaForCausalLM"].inspect_model_cls()
"""
_DEBIAN = {"python3.11": INTERPRETER, "libnuma1": Path("/usr/lib/x86_64-linux-gnu/libnuma.so.1")}
_MODEL_SCRIPT = Path(__file__).with_name("tiny_model.py")
_PLUGIN = repository_root() / "images/vllm/plugin"
_LIBRARIES = Path("venv/lib/python3.11/site-packages")

Say = Callable[[str], None]


class EngineSetupError(RuntimeError):
    """Report why real engines cannot be set up here, and what to do."""


@dataclass(frozen=True, slots=True)
class EngineEnv:
    """Where things are; ``root`` holds venv and model and may be mounted elsewhere as it is."""

    root: Path
    version: str = VLLM_VERSION

    @property
    def python(self) -> Path:
        """Return the engines' interpreter."""
        return self.root / "venv/bin/python"

    @property
    def vllm(self) -> Path:
        """Return the program of ``vllm serve``."""
        return self.root / "venv/bin/vllm"

    @property
    def model(self) -> Path:
        """Return the folder of the tiny model."""
        return self.root / "model"

    @property
    def cache(self) -> Path:
        """Return the folder of what vLLM notes of a kind of model, for which it starts a process more otherwise."""
        return self.root / "cache"

    @property
    def there(self) -> bool:
        """Return whether it was made completely."""
        return (self.root / "made").exists()


def environment() -> EngineEnv:
    """Return the environment of this checkout's pins, made or not; other pins live in another folder.

    Raises:
        EngineSetupError: ``WEFT_VLLM_VERSION`` names a version that is not pinned.
    """
    version = os.environ.get(VERSION_VARIABLE, VLLM_VERSION)
    if version not in (*OLDER, VLLM_VERSION):
        known = ", ".join((*OLDER, VLLM_VERSION))
        raise EngineSetupError(f"{VERSION_VARIABLE}: {version} is not pinned; choose one of {known}")
    digest = hashlib.sha256(_requirements(version).read_bytes() + _MODEL_SCRIPT.read_bytes()).hexdigest()[:8]
    return EngineEnv(cache_root() / "engines" / f"vllm-{version}-{digest}", version)


def ensure(say: Say = lambda _: None) -> EngineEnv:
    """Return the environment, made if it is not there yet.

    Raises:
        EngineSetupError: something is missing, does not fit on the disk or cannot be downloaded.
    """
    env = environment()
    if not (env.there and (env.root / _plugin_mark()).exists() and _noted(env).exists()):
        env.root.parent.mkdir(parents=True, exist_ok=True)
        with _locked(env.root.parent / f".{env.root.name}.lock"):
            if not env.there:
                _make(env, say)
            _add_plugin(env)
            _note_model(env)
    return env


def check() -> None:
    """Check that the environment is there or could be made.

    Raises:
        EngineSetupError: it is not and cannot be; the message says why and what to do.
    """
    env = environment()
    if not env.there:
        env.root.parent.mkdir(parents=True, exist_ok=True)
        _check_machine(env.root.parent)


def _make(env: EngineEnv, say: Say) -> None:
    began = time.monotonic()
    _check_machine(env.root.parent)
    _install_missing(say)
    part = env.root.with_name(f"{env.root.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    uv = _uv()
    say(f"installing vLLM {env.version} (CPU) and NIXL into {env.root} (2.5 GB to download) …")
    run([uv, "venv", "--quiet", "--relocatable", "--python", str(INTERPRETER), str(part / "venv")], limit_s=60)
    install = [uv, "pip", "install", "--quiet", "--python", str(part / "venv/bin/python")]
    pinned = ["--no-deps", "--require-hashes", "--compile-bytecode", "-r", str(_requirements(env.version))]
    run([*install, *pinned], limit_s=INSTALL_S, fix=_DOWNLOAD)
    _name_it_vllm(part / _LIBRARIES, env.version)
    say("making the tiny model …")
    offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    run([str(part / "venv/bin/python"), str(_MODEL_SCRIPT), str(part / "model")], limit_s=MODEL_S, env=offline)
    for path in (part / "model").iterdir():
        path.chmod(0o644)  # pods read it as another user
    (part / "made").touch()
    shutil.rmtree(env.root, ignore_errors=True)
    part.rename(env.root)
    say(f"made in {time.monotonic() - began:.0f} s")


_DOWNLOAD = (
    "check that this machine reaches its package index (uv's own settings, such as UV_DEFAULT_INDEX) and try again"
)


def _add_plugin(env: EngineEnv) -> None:
    """Install Weft's plug-in as anybody would, from its wheel; one that has changed takes the place of the old."""
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        run(build, limit_s=120, cwd=_PLUGIN, fix="run `make setup`, which installs hatchling into .venv")
        (wheel,) = Path(folder).glob("*.whl")
        install = [_uv(), "pip", "install", "--quiet", "--offline", "--no-deps", "--reinstall", "--compile-bytecode"]
        run([*install, "--python", str(env.python), str(wheel)], limit_s=120)
    for old in env.root.glob("plugin-*"):
        old.unlink()
    (env.root / _plugin_mark()).touch()


def _note_model(env: EngineEnv) -> None:
    """Let vLLM note what it asks of the model's class at each start: every engine begins seconds sooner."""
    if _noted(env).exists():
        return
    quiet = {"VLLM_CACHE_ROOT": str(env.cache), "VLLM_PLUGINS": "", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    run([str(env.python), "-c", _NOTE], limit_s=MODEL_S, env=quiet)
    for path in env.cache.rglob("*.json"):
        path.chmod(0o644)  # pods read it as another user
    _noted(env).touch()


def _noted(env: EngineEnv) -> Path:
    return env.root / "noted"


def _plugin_mark() -> str:
    """Return the name of the file that tells which plug-in is installed."""
    digest = hashlib.sha256()
    for path in sorted(_PLUGIN.rglob("*")):
        if path.suffix in (".py", ".toml"):
            digest.update(path.name.encode() + path.read_bytes())
    return f"plugin-{digest.hexdigest()[:12]}"


def _check_machine(folder: Path) -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise EngineSetupError("real engines need Linux on x86-64: their wheels are built for it")
    absent = _absent()
    if absent and not packages.can_install():
        raise EngineSetupError(f"missing: {', '.join(absent)}. On Debian 12: apt-get install {' '.join(absent)}")
    free = shutil.disk_usage(folder).free / 2**30
    if free < NEEDED_GIB:
        raise EngineSetupError(
            f"{folder}: {free:.1f} GiB are free and {NEEDED_GIB:g} needed; make room, or set WEFT_CACHE to another disk"
        )


def _install_missing(say: Say) -> None:
    absent = _absent()
    if not absent:
        return
    say(f"installing {' '.join(absent)} …")
    try:
        packages.apt_install(absent)
    except SetupError as error:
        raise EngineSetupError(f"{error}. Real engines need Debian 12's own Python 3.11") from error


def _absent() -> list[str]:
    return [package for package, file in _DEBIAN.items() if not file.exists()]


def _name_it_vllm(libraries: Path, version: str) -> None:
    """Add the metadata of a package named vllm: the CLI asks for its version, and "+cpu" in it chooses the platform."""
    info = libraries / f"vllm-{version}+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (info / "INSTALLER").write_text("weft\n")
    (info / "RECORD").write_text("".join(f"{info.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD")))


def run(
    argv: Sequence[str], *, limit_s: float, env: Mapping[str, str] | None = None, cwd: Path | None = None, fix: str = ""
) -> None:
    """Run one step.

    Raises:
        EngineSetupError: it failed or did not end in time; the message ends with what it said, and ``fix``.
    """
    try:
        done = subprocess.run(
            argv,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineSetupError(_failed(argv, f"did not end within {limit_s:g} s", fix)) from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise EngineSetupError(_failed(argv, f"failed with status {done.returncode}:\n{said}", fix))


def _failed(argv: Sequence[str], what: str, fix: str) -> str:
    return f"`{' '.join(argv[:3])} …` {what}{'; ' + fix if fix else ''}"


def _requirements(version: str) -> Path:
    name = "engine.txt" if version == VLLM_VERSION else f"engine-{version}.txt"
    return repository_root() / "requirements" / name


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise EngineSetupError("uv is missing: run `make setup`, which installs it into .venv")
    return found


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
