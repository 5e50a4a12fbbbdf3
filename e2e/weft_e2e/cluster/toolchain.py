"""Builds the programs of the local cluster from source into the cache, once per version.

Those that every cluster needs (Kubernetes, CoreDNS, Helm, Prometheus) come from one Go module, programs/, whose go.mod
aligns the versions of the packages that they share: these are compiled once for all of them. Others are built when
somebody asks for them, each inside its own module. All are pinned by version and checked against a go.sum or Go's
checksum database. Two short C programs come along. What is there already is never built again.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from weft_e2e.cluster import children, golang
from weft_e2e.cluster.errors import SetupError
from weft_e2e.cluster.paths import bin_dir
from weft_e2e.cluster.progress import Progress, Work

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
# Of Prometheus only Kubernetes discovery: Debian's build has just that one compiled out.
TAGS = "remove_all_sd,enable_kubernetes_sd"


@dataclass(frozen=True)
class Tool:
    """One Go program and the package of its main; or manifests of a module alone, without a program."""

    name: str
    package: str
    """Empty where only the manifests are wanted."""
    version: str
    module: str | None = None
    """The module to build inside of; without one it is among those of PROGRAMS."""
    """It is built then only when somebody asks for it: most clusters do without."""
    work_s: float = 0.0
    """What its build takes, in seconds of Work; those of PROGRAMS are measured together."""
    manifests: tuple[str, ...] = ()
    """Folders of its module whose YAML files are kept beside the program."""

    @property
    def file_name(self) -> str:
        suffix = "" if self.module else f"-{_programs_digest()}"
        return f"{self.name}-{self.version}{suffix}"

    @property
    def path(self) -> Path:
        return bin_dir() / self.file_name

    @property
    def shared(self) -> Path:
        """Return the folder of its manifests."""
        return bin_dir().parent / "share" / self.file_name

    @property
    def there(self) -> bool:
        return (not self.package or self.path.exists()) and (not self.manifests or self.shared.exists())


@cache
def required(module: str) -> str:
    """Return the version of a module that programs/go.mod requires."""
    found = re.search(rf"^\t{re.escape(module)} (v\S+)", (PROGRAMS / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise LookupError(f"programs/go.mod does not require {module}")
    return found[1]


KUBERNETES = required("k8s.io/kubernetes")

TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool("kubernetes", "./cmd/kubernetes", KUBERNETES),
        Tool("coredns", "./cmd/coredns", required("github.com/coredns/coredns")),
        Tool("helm", "helm.sh/helm/v4/cmd/helm", required("helm.sh/helm/v4")),
        Tool(
            "prometheus",
            "github.com/prometheus/prometheus/cmd/prometheus",
            required("github.com/prometheus/prometheus"),
        ),
        # `make check` tests the chart's alert rules with it; of all that it needs, Prometheus lacks seven packages.
        Tool(
            "promtool",
            "github.com/prometheus/prometheus/cmd/promtool",
            required("github.com/prometheus/prometheus"),
        ),
        Tool(
            "kwok",
            "./cmd/kwok",
            "v0.8.0",
            module="sigs.k8s.io/kwok",
            work_s=60,
            # The rules by which fake nodes and pods become ready.
            manifests=tuple(
                f"kustomize/stage/{part}" for part in ("node/fast", "node/heartbeat-with-lease", "pod/fast")
            ),
        ),
        Tool(
            "kube-router",
            "./cmd/kube-router",
            "v2.2.1",
            # The releases of cloudnativelabs itself lack a checksum record; this fork of them is what k3s ships.
            module="github.com/k3s-io/kube-router/v2",
            work_s=70,
        ),
        Tool(
            "argocd",
            "./cmd",
            "v3.2.11",  # later ones do not build as a module
            module="github.com/argoproj/argo-cd/v3",
            work_s=360,
            manifests=("manifests/crds",),
        ),
        # What a gateway brings to a cluster: the definitions of HTTPRoute and InferencePool.
        Tool(
            "gateway-api",
            "",
            "v1.4.0",
            module="sigs.k8s.io/gateway-api",
            work_s=5,
            manifests=("config/crd/standard",),
        ),
        Tool(
            "inference-extension",
            "",
            "v1.6.0",
            module="sigs.k8s.io/gateway-api-inference-extension",
            work_s=5,
            manifests=("config/crd/bases",),
        ),
    )
}

NATIVE = ("pause", "forward")
PROGRAMS_WORK_S = 290.0  # 570 s of processor time in all
DOWNLOADING = 0.08  # the share of a build until its modules are there


def tool_path(name: str) -> Path:
    """Return the built program `name`, or raise SetupError that says how to build it."""
    path = native_path(name) if name in NATIVE else TOOLS[name].path
    if not path.exists():
        raise SetupError(f"{path.name} is not built yet: run `python -m weft_e2e.cluster setup`")
    return path


def manifests_of(name: str) -> list[Path]:
    """Return the manifests of a module: KWOK's stages, the definitions of Argo CD and of gateways."""
    return sorted(TOOLS[name].shared.glob("*.yaml"))


def native_path(name: str) -> Path:
    content = hashlib.sha256((HERE / "native" / f"{name}.c").read_bytes()).hexdigest()[:8]
    return bin_dir() / f"{name}-{content}"


def missing(only: frozenset[str] = frozenset()) -> list[str]:
    """Return which programs are not built: of those that every cluster needs, or of some names."""
    tools = [tool for tool in TOOLS.values() if (tool.name in only if only else tool.module is None)]
    natives = [name for name in NATIVE if not only or name in only]
    return [
        *(tool.name for tool in tools if not tool.there),
        *(name for name in natives if not native_path(name).exists()),
    ]


def build_all(progress: Progress, only: frozenset[str] = frozenset()) -> None:
    """Build whatever is missing, and say how far it is; `only` limits it to some names."""
    work = Work(work_of(missing(only)), progress)
    with work.reported():
        build(work, only)


def work_of(names: Collection[str]) -> dict[str, float]:
    """Return the parts of the work of building some programs, with what each takes."""
    common = _common(names)
    parts = {_title(common): PROGRAMS_WORK_S} if common else {}
    return parts | {tool.name: tool.work_s for tool in _alone(names)}


def build(work: Work, only: frozenset[str] = frozenset()) -> None:
    """Build whatever is missing as parts of a larger work."""
    names = missing(only)
    common, alone = _common(names), _alone(names)
    if common or alone:
        golang.check_go()
    for name in (name for name in names if name in NATIVE):
        with _lock(name, work.progress):
            if not native_path(name).exists():
                _build_native(name)
    if common:
        with work.part(_title(common)), _lock("programs", work.progress):
            # Another builder may have been faster.
            _build_common([tool for tool in common if not tool.there], work, _title(common))
    for tool in alone:
        with work.part(tool.name), _lock(tool.name, work.progress):
            if not tool.there:
                _build_alone(tool, work)


def _common(names: Collection[str]) -> list[Tool]:
    return [tool for tool in TOOLS.values() if tool.name in names and tool.module is None]


def _alone(names: Collection[str]) -> list[Tool]:
    return [tool for tool in TOOLS.values() if tool.name in names and tool.module]


def _title(tools: Sequence[Tool]) -> str:
    return ", ".join(tool.name for tool in tools)


def _build_common(tools: Sequence[Tool], work: Work, part: str) -> None:
    """Build programs of the common module in one go: every core has something to compile until the end."""
    if not tools:
        return
    with tempfile.TemporaryDirectory(dir=bin_dir(), prefix=".programs-") as scratch:
        _compile(tools, _flags(), cwd=PROGRAMS, output=Path(scratch), work=work, part=part)
        for tool in tools:
            (Path(scratch) / tool.name).rename(tool.path)


def _build_alone(tool: Tool, work: Work) -> None:
    output = golang.run(["go", "mod", "download", "-json", f"{tool.module}@{tool.version}"], cwd=bin_dir())
    source = Path(str(json.loads(output)["Dir"]))
    if tool.package:
        flags = [*golang.FLAGS, "-ldflags=-s -w"]
        with _into_place(tool.path) as program:
            _compile([tool], flags, cwd=source, output=program, work=work, part=tool.name)
    if tool.manifests:
        _copy_manifests(tool, source)


def _compile(tools: Sequence[Tool], flags: Sequence[str], *, cwd: Path, output: Path, work: Work, part: str) -> None:
    packages = [tool.package for tool in tools]
    sizes, share = golang.stale_sizes(packages, flags, cwd=cwd)
    work.resize(part, share)

    def advance(share: float) -> None:
        work.advance(part, DOWNLOADING + (1 - DOWNLOADING) * share)

    advance(0.0)
    golang.build(packages, flags, cwd=cwd, output=output, sizes=sizes, advance=advance)


def _flags() -> list[str]:
    """Return the flags of the common module's programs: the same for all, or nothing they share would be shared."""
    base = "k8s.io/component-base/version"
    major, minor = KUBERNETES.removeprefix("v").split(".")[:2]
    # Without these the API server calls itself v0.0.0, and clients refuse it.
    told = {f"{base}.gitVersion": KUBERNETES, f"{base}.gitMajor": major, f"{base}.gitMinor": minor}
    told["helm.sh/helm/v4/internal/version.version"] = TOOLS["helm"].version
    words = " ".join(f"-X {name}={value}" for name, value in told.items())
    return [*golang.FLAGS, f"-tags={TAGS}", f"-ldflags=-s -w {words}"]


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
        argv = ["gcc", "-O2", "-Wall", "-static", "-s", "-pthread", "-o", str(output), str(source)]
        golang.run(argv, cwd=source.parent)


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
        deadline = time.monotonic() + golang.BUILD_SECONDS
        waiting = False
        while True:
            children.check()
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    late = f"another process has been building {name} for {golang.BUILD_SECONDS:.0f} s"
                    raise SetupError(late) from None
                if not waiting:
                    progress(f"waiting for another process that builds {name} …")
                waiting = True
                time.sleep(0.5)
        yield


@cache
def _programs_digest() -> str:
    return digest(PROGRAMS)


def digest(folder: Path) -> str:
    """Return what the programs of the common module are built from: its files and the flags."""
    total = hashlib.sha256(" ".join((*golang.FLAGS, TAGS)).encode())
    for file in sorted(folder.rglob("*")):
        if file.suffix in (".go", ".mod", ".sum"):
            total.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:8]
