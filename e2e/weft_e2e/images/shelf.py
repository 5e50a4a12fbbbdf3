"""Builds what changed, and ships images to a registry or a local cluster."""

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from weft_e2e.cluster import children
from weft_e2e.cluster.prerequisites import Task
from weft_e2e.cluster.progress import Work
from weft_e2e.images import buildah
from weft_e2e.images.architectures import check_buildable, native
from weft_e2e.images.base import base_ref, ensure_base, images_cache
from weft_e2e.images.catalogue import Image, chosen, programs_of, published_names, repository_root
from weft_e2e.images.content import context_files, copied_paths, digest, stage
from weft_e2e.images.errors import BuildFailedError, CannotBuildError

PYTHON_IMAGE_VARIABLE = "WEFT_PYTHON_IMAGE"
ARGUMENT = re.compile(r"^ARG (\w+)", re.MULTILINE)
AT_ONCE = 2  # one waits for packages while the other installs some
BASE = "base image"
BASE_WORK_S = 35.0
COMPILED_WORK_S = 240.0
TABLES_MB = 150.0
"""What NVIDIA's tables and the packages that read them may add to an image."""
WITH_TABLES = "weft-operator"
"""The image that can have NVIDIA's tables of operator times; its tag then ends in ``-silicon``."""
LOCK_PAUSE_S = 0.5
Report = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides an image's content, and the name that follows from it."""

    image: Image
    dockerfile: str
    files: Mapping[str, Path]
    args: Mapping[str, str]
    ref: str
    arch: str

    @property
    def log(self) -> Path:
        """Return where a build says what it does."""
        return images_cache() / f"logs/{self.image.name}.log"


def recipe_of(
    image: Image, *, python_image: str, compiled: bool = False, silicon: bool = False, arch: str | None = None
) -> Recipe:
    """Read an image's Dockerfile and files, and name the image by their content and architecture."""
    root = repository_root()
    dockerfile = (root / image.dockerfile).read_text()
    files = context_files(root, copied_paths(dockerfile), outside=programs_of(image))
    offered = {"PYTHON_IMAGE": python_image, "COMPILED": str(int(compiled)), "SILICON": str(int(silicon))}
    args = {name: value for name, value in offered.items() if name in ARGUMENT.findall(dockerfile)}
    arch = arch or native()
    tag = digest(files, dockerfile=dockerfile, args=args | {"ARCH": arch})
    ref = f"localhost/{image.name}:{tag}"
    return Recipe(image=image, dockerfile=dockerfile, files=files, args=args, ref=ref, arch=arch)


def refs(
    names: list[str] | None = None, *, python_image: str | None = None, compiled: bool = False, silicon: bool = False
) -> dict[str, str]:
    """Return image name -> full reference as a build would give it now, without building."""
    base = python_image or os.environ.get(PYTHON_IMAGE_VARIABLE) or base_ref()
    recipes = [recipe_of(image, python_image=base, compiled=compiled, silicon=silicon) for image in chosen(names)]
    return {recipe.image.name: recipe.ref for recipe in recipes}


@children.ended_when_interrupted()
def build(
    names: list[str] | None = None,
    *,
    python_image: str | None = None,
    compiled: bool = False,
    silicon: bool = False,
    arch: str | None = None,
    report: Report = lambda _line: None,
    work: Work | None = None,
) -> dict[str, str]:
    """Build the images whose content changed; return image name -> full reference for all that were asked for.

    ``compiled`` is for images that serve: the router's path is compiled, which takes minutes. With ``silicon`` the
    operator's image has NVIDIA's tables. ``arch`` is by default the architecture of this machine. One build of images
    runs at a time on a machine; a second caller waits and then finds the work done.
    """
    if arch is not None:
        check_buildable(arch)
    with one_at_a_time(work.progress if work else report):
        base = python_image or os.environ.get(PYTHON_IMAGE_VARIABLE)
        recipes = [
            recipe_of(image, python_image=base or base_ref(arch), compiled=compiled, silicon=silicon, arch=arch)
            for image in chosen(names)
        ]
        absent = [recipe for recipe in recipes if not buildah.exists(recipe.ref)]
        for recipe in recipes:
            if recipe not in absent:
                report(f"{recipe.ref} is up to date")
        told = work or Work(_parts(absent, own_base=base is None), report)
        with told.reported() if work is None else nullcontext():
            _build_side_by_side(absent, told, own_base=base is None)
        for recipe in recipes:
            check_size(recipe)
    return {recipe.image.name: recipe.ref for recipe in recipes}


def task(names: list[str] | None = None, *, compiled: bool = False) -> Task:
    """Return the building of the images that hold none of the programs, to be done beside these."""
    wanted = [image for image in chosen(names) if not image.programs]
    base = os.environ.get(PYTHON_IMAGE_VARIABLE)
    recipes = [recipe_of(image, python_image=base or base_ref(), compiled=compiled) for image in wanted]
    absent = [recipe for recipe in recipes if not _stored(recipe.ref)]

    def run(work: Work) -> None:
        if absent:
            build([recipe.image.name for recipe in absent], compiled=compiled, work=work)

    return Task(parts=_parts(absent, own_base=base is None), run=run)


def _parts(absent: Sequence[Recipe], *, own_base: bool) -> dict[str, float]:
    """Return what building some images consists of, with what each part takes."""
    parts = {BASE: BASE_WORK_S} if own_base and _lack_base(absent) else {}
    return parts | {
        recipe.image.name: COMPILED_WORK_S if recipe.args.get("COMPILED") == "1" else recipe.image.work_s
        for recipe in absent
    }


def _lack_base(recipes: Sequence[Recipe]) -> bool:
    return any("PYTHON_IMAGE" in recipe.args and not _stored(base_ref(recipe.arch)) for recipe in recipes)


def _stored(ref: str) -> bool:
    """Return whether the local store has an image; without buildah there is none yet."""
    return shutil.which("buildah") is not None and buildah.exists(ref)


def _build_side_by_side(recipes: Sequence[Recipe], work: Work, *, own_base: bool) -> None:
    def one(recipe: Recipe) -> None:
        with work.part(recipe.image.name):
            build_recipe(recipe)

    if own_base and _lack_base(recipes):
        with work.part(BASE):
            ensure_base(work.progress, arch=recipes[0].arch)
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool, children.ended_when_interrupted():
        list(pool.map(one, recipes))


def build_recipe(recipe: Recipe) -> None:
    """Build one image with buildah."""
    with build_context(recipe) as context:
        buildah.build(
            recipe.ref,
            context=context,
            dockerfile=recipe.image.dockerfile,
            args=recipe.args,
            log=recipe.log,
            arch=recipe.arch,
        )


def check_size(recipe: Recipe) -> None:
    """Refuse an image of the local store that is larger than the catalogue allows.

    Raises:
        BuildFailedError: it is; the message says by how much and what adds to it.
    """
    most = recipe.image.most_mb + (TABLES_MB if recipe.args.get("SILICON") == "1" else 0.0)
    size = buildah.megabytes(recipe.ref)
    if size > most:
        raise BuildFailedError(
            f"{recipe.ref} has {size:.0f} MB, and {most:.0f} are allowed: remove what it does not need from its "
            f"requirements or {recipe.image.dockerfile}, or raise most_mb in weft_e2e/images/catalogue.py"
        )


@contextmanager
def build_context(recipe: Recipe) -> Iterator[Path]:
    """Give a folder that holds the Dockerfile and exactly the files that the image's tag was computed over."""
    with tempfile.TemporaryDirectory(dir=images_cache(), prefix="context-") as folder:
        context = Path(folder)
        stage({**recipe.files, recipe.image.dockerfile: repository_root() / recipe.image.dockerfile}, context)
        yield context


@children.ended_when_interrupted()
def push(
    registry: str,
    *,
    tag: str | None = None,
    options: Sequence[str] = (),
    python_image: str | None = None,
    architectures: Sequence[str] = (),
    silicon: bool = False,
    report: Report = lambda _line: None,
) -> dict[str, str]:
    """Build the published images and push them as <registry>/<name>:<tag>; return name -> pushed reference.

    With several architectures each name is an image index, from which a node takes the image of its own kind. With
    ``silicon`` the operator's image with NVIDIA's tables is pushed, too, as <registry>/weft-operator:<tag>-silicon.

    Without a tag the chart's appVersion is used, which is what the chart asks for. Credentials are buildah's own
    (`buildah login`). `options` go to `buildah push`, for instance --tls-verify=false.
    """
    prefix = registry.strip().rstrip("/")
    if not prefix or "://" in prefix or " " in prefix:
        raise CannotBuildError(f"registry {registry!r}: write it as registry.example.com/team, without a scheme")
    wanted = tag or chart_app_version()
    pushed: dict[str, str] = {}
    for arch in architectures:
        check_buildable(arch)
    # Under emulation the compilation would take an hour.
    built = [
        build(published_names(), python_image=python_image, compiled=arch == native(), arch=arch, report=report)
        for arch in architectures or (native(),)
    ]
    tagged = {name: (f"{prefix}/{name}:{wanted}", [by_name[name] for by_name in built]) for name in published_names()}
    if silicon:
        with_tables = [
            build([WITH_TABLES], python_image=python_image, silicon=True, arch=arch, report=report)[WITH_TABLES]
            for arch in architectures or (native(),)
        ]
        tagged[f"{WITH_TABLES}-silicon"] = f"{prefix}/{WITH_TABLES}:{wanted}-silicon", with_tables
    for name, (target, refs_of_name) in tagged.items():
        report(f"pushing {target}")
        log = images_cache() / f"logs/push-{name}.log"
        if len(refs_of_name) == 1:
            buildah.push(refs_of_name[0], f"docker://{target}", options=options, log=log)
        else:
            buildah.push_for_all(refs_of_name, f"docker://{target}", options=options, log=log)
        pushed[name] = target
    return pushed


def prune(*, python_image: str | None = None) -> list[str]:
    """Remove this project's images that the present content does not name, and all build layers; return what went."""
    with one_at_a_time():
        kept = {base_ref()}
        for compiled, silicon in product((False, True), repeat=2):
            kept.update(refs(python_image=python_image, compiled=compiled, silicon=silicon).values())
        repositories = {ref.rpartition(":")[0] for ref in kept}
        old = [name for name in buildah.names() if name.rpartition(":")[0] in repositories and name not in kept]
        buildah.remove(old, log=images_cache() / "logs/prune.log")
    return old


def chart_app_version() -> str:
    """Return the version of Weft that the chart installs by default."""
    for line in (repository_root() / "charts/weft/Chart.yaml").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "appVersion":
            return value.strip().strip("\"'")
    raise CannotBuildError("charts/weft/Chart.yaml names no appVersion")


def chart_values(images: Mapping[str, str]) -> list[str]:
    """Return the Helm arguments that make the chart use these images instead of a registry's."""
    values = {
        "weft-operator": "operator.image",
        "weft-router": "router.image",
        "weft-mock-engine": "mockEngine.image",
        "weft-redis": "redis.embedded.image",
        "weft-prometheus": "prometheus.embedded.image",
    }
    arguments: list[str] = []
    for name, key in values.items():
        if name in images:
            arguments += ["--set-string", f"{key}={images[name]}"]
    return arguments


@contextmanager
def one_at_a_time(report: Report = lambda _line: None) -> Iterator[None]:
    """Hold this machine's build lock; say so where another process holds it."""
    images_cache().mkdir(parents=True, exist_ok=True)
    with (images_cache() / ".lock").open("w") as lock:
        waits = False
        while not _flock(lock.fileno()):
            if not waits:
                report("waiting for another process that builds images …")
            waits = True
            children.check()
            time.sleep(LOCK_PAUSE_S)
        yield


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
