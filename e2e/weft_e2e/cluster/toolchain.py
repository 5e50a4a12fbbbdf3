"""Builds the programs of the local cluster from source into the cache, once per version.

Everything comes as ordinary Go modules, pinned by version and checked by Go against its checksum
database (or, for the multi-call binary, against the go.sum beside its main.go), and two short C
programs. What is there already is never built again.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from weft_e2e.cluster.errors import SetupError
from weft_e2e.cluster.paths import bin_dir

Progress = Callable[[str], None]

HERE = Path(__file__).parent
GO_MINIMUM = (1, 26)  # helm, kwok and coredns ask for it in their go.mod
BUILD_SECONDS = 1800.0  # the largest takes 300 s on two idle cores; six times that is a hang
KUBERNETES = "v1.35.0"


@dataclass(frozen=True)
class Tool:
    """One Go program: `module@version`, and the package in it that holds main."""

    name: str
    version: str
    module: str | None  # None: the module beside this file
    package: str
    tags: str = ""
    ldflags: str = ""
    optional: bool = False
    """Built when somebody asks for it by name: most clusters do without."""
    manifests: tuple[str, ...] = ()
    """Folders of the module whose YAML files are kept beside the program."""

    @property
    def file_name(self) -> str:
        suffix = f"-{_digest(HERE / 'kubernetes')}" if self.module is None else ""
        return f"{self.name}-{self.version}{suffix}"

    @property
    def path(self) -> Path:
        return bin_dir() / self.file_name

    @property
    def shared(self) -> Path:
        """Return the folder of its manifests."""
        return bin_dir().parent / "share" / f"{self.name}-{self.version}"

    @property
    def there(self) -> bool:
        return self.path.exists() and (not self.manifests or self.shared.exists())


_VERSION = "k8s.io/component-base/version"
_MAJOR, _MINOR = KUBERNETES.removeprefix("v").split(".")[:2]

TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            name="kubernetes",
            version=KUBERNETES,
            module=None,
            package=".",
            # Without these the API server calls itself v0.0.0, and clients refuse it.
            ldflags=" ".join(
                f"-X {_VERSION}.{key}={value}"
                for key, value in (("gitVersion", KUBERNETES), ("gitMajor", _MAJOR), ("gitMinor", _MINOR))
            ),
        ),
        Tool(name="coredns", version="v1.15.0", module="github.com/coredns/coredns", package="."),
        Tool(
            name="helm",
            version="v4.3.1",
            module="helm.sh/helm/v4",
            package="./cmd/helm",
            ldflags="-X helm.sh/helm/v4/internal/version.version=v4.3.1",
        ),
        Tool(
            name="kwok",
            version="v0.8.0",
            module="sigs.k8s.io/kwok",
            package="./cmd/kwok",
            # The rules by which fake nodes and pods become ready.
            manifests=tuple(
                f"kustomize/stage/{part}" for part in ("node/fast", "node/heartbeat-with-lease", "pod/fast")
            ),
        ),
        Tool(
            name="prometheus",
            version="v0.314.0",
            module="github.com/prometheus/prometheus",
            package="./cmd/prometheus",
            # Only Kubernetes discovery: Debian's build has just that one compiled out.
            tags="remove_all_sd,enable_kubernetes_sd",
        ),
        Tool(
            name="kube-router",
            version="v2.2.1",
            # The releases of cloudnativelabs itself lack a checksum record; this fork of them is what k3s ships.
            module="github.com/k3s-io/kube-router/v2",
            package="./cmd/kube-router",
            optional=True,
        ),
        Tool(
            name="argocd",
            version="v3.2.11",  # later ones do not build as a module
            module="github.com/argoproj/argo-cd/v3",
            package="./cmd",
            optional=True,
            manifests=("manifests/crds",),
        ),
    )
}

NATIVE = ("pause", "forward")


def tool_path(name: str) -> Path:
    """Return the built program `name`, or raise SetupError that says how to build it."""
    path = native_path(name) if name in NATIVE else TOOLS[name].path
    if not path.exists():
        raise SetupError(f"{path.name} is not built yet: run `python -m weft_e2e.cluster setup`")
    return path


def manifests_of(name: str) -> list[Path]:
    """Return the manifests that are kept beside a program: KWOK's stages, Argo CD's definitions."""
    return sorted(TOOLS[name].shared.glob("*.yaml"))


def native_path(name: str) -> Path:
    digest = hashlib.sha256((HERE / "native" / f"{name}.c").read_bytes()).hexdigest()[:8]
    return bin_dir() / f"{name}-{digest}"


def missing(only: frozenset[str] = frozenset()) -> list[str]:
    """Return the names of the programs that `build_all` would build: optional ones only where they are asked for."""
    tools = [
        tool.name for tool in TOOLS.values() if (tool.name in only if only else not tool.optional) and not tool.there
    ]
    return [*tools, *(name for name in NATIVE if not native_path(name).exists())]


def build_all(progress: Progress, only: frozenset[str] = frozenset()) -> None:
    """Build whatever is missing, one after the other; `only` limits it to some names."""
    wanted = [name for name in missing(only) if not only or name in only]
    if any(name in TOOLS for name in wanted):
        check_go()
    for name in wanted:
        with _lock(name, progress):
            if name not in missing(only):  # another builder was faster
                continue
            begin = time.monotonic()
            progress(f"building {name} …")
            if name in TOOLS:
                _build_go(TOOLS[name])
            else:
                _build_native(name)
            progress(f"built {name} in {time.monotonic() - begin:.0f} s")


def check_go() -> None:
    """Raise SetupError unless a new enough Go is on PATH."""
    needed = ".".join(map(str, GO_MINIMUM))
    try:
        text = subprocess.run(["go", "version"], check=True, capture_output=True, text=True, timeout=60).stdout
    except FileNotFoundError:
        raise SetupError(
            f"Go is missing: install Go {needed} or newer (https://go.dev/dl) and put it on PATH"
        ) from None
    except (subprocess.SubprocessError, OSError) as error:
        raise SetupError(f"`go version` failed: {error}") from error
    if not go_version_suffices(text):
        raise SetupError(f"Go is too old ({text.strip()}): install Go {needed} or newer (https://go.dev/dl)")


def go_version_suffices(text: str) -> bool:
    """Return whether the output of `go version` names GO_MINIMUM or newer."""
    found = re.search(r"\bgo(\d+)\.(\d+)", text)
    return found is not None and (int(found[1]), int(found[2])) >= GO_MINIMUM


def _build_go(tool: Tool) -> None:
    source = HERE / "kubernetes" if tool.module is None else _download(tool.module, tool.version)
    with _into_place(tool.path) as output:
        flags = ["-trimpath", "-tags", tool.tags, "-ldflags", f"-s -w {tool.ldflags}"]
        _run(["go", "build", *flags, "-o", str(output), tool.package], cwd=source)
    if tool.manifests:
        _copy_manifests(tool, source)


def _download(module: str, version: str) -> Path:
    output = _run(["go", "mod", "download", "-json", f"{module}@{version}"], cwd=bin_dir())
    return Path(str(json.loads(output)["Dir"]))


def _copy_manifests(tool: Tool, source: Path) -> None:
    tool.shared.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tool.shared.parent) as scratch:
        target = Path(scratch) / "manifests"
        target.mkdir()
        for folder in tool.manifests:
            for file in sorted((source / folder).glob("*.yaml")):
                if file.name != "kustomization.yaml":
                    target.joinpath(file.name).write_bytes(file.read_bytes())
        shutil.rmtree(tool.shared, ignore_errors=True)
        target.rename(tool.shared)


def _build_native(name: str) -> None:
    with _into_place(native_path(name)) as output:
        source = HERE / "native" / f"{name}.c"
        # Static: pause runs in an image that holds nothing else.
        _run(["gcc", "-O2", "-Wall", "-static", "-s", "-pthread", "-o", str(output), str(source)], cwd=source.parent)


@contextmanager
def _into_place(path: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes `path` in one step, so that no half-built program is ever found."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.chmod(0o755)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _lock(name: str, progress: Progress) -> Iterator[None]:
    bin_dir().mkdir(parents=True, exist_ok=True)
    with (bin_dir() / f".{name}.lock").open("w") as file:
        deadline = time.monotonic() + BUILD_SECONDS
        waiting = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SetupError(f"another process has been building {name} for {BUILD_SECONDS:.0f} s") from None
                if not waiting:
                    progress(f"waiting for another process that builds {name} …")
                waiting = True
                time.sleep(0.5)
        yield


def _run(argv: list[str], *, cwd: Path) -> str:
    environment = os.environ | {
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOFLAGS": "-buildvcs=false",
    }
    try:
        done = subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS)
    except FileNotFoundError:
        raise SetupError(f"{argv[0]} is missing: see docs/local-cluster.md") from None
    except subprocess.TimeoutExpired:
        raise SetupError(f"`{' '.join(argv[:4])} …` did not end within {BUILD_SECONDS:.0f} s") from None
    if done.returncode != 0:
        raise SetupError(f"`{' '.join(argv)}` failed:\n{done.stderr.strip()[-3000:]}")
    return done.stdout


def _digest(folder: Path) -> str:
    total = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in (".go", ".mod", ".sum"):
            total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:8]
