"""Makes the Debian base image of the local builds, without a registry.

A user with a registry builds on `python:3.11-slim-bookworm`, the default of the Dockerfiles. Here a Debian root folder
from the machine's own package mirror takes its place; the final images only take Python's files out of it.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from weft_e2e.cluster.paths import cache_root
from weft_e2e.images import buildah
from weft_e2e.images.architectures import native
from weft_e2e.images.catalogue import repository_root
from weft_e2e.images.commands import run_logged
from weft_e2e.images.content import digest
from weft_e2e.images.errors import CannotBuildError

SUITE = "bookworm"
PACKAGES = ("python3", "python3-venv", "ca-certificates")
DOCKERFILE = "images/python/Dockerfile"


def images_cache() -> Path:
    """Return the folder for base archives and build logs."""
    return cache_root() / "images"


def base_ref(arch: str | None = None) -> str:
    """Return the name of the base image for an architecture (this machine's by default); it changes with the recipe."""
    recipe = (repository_root() / DOCKERFILE).read_text()
    args = {"SUITE": SUITE, "PACKAGES": " ".join(PACKAGES), "ARCH": arch or native()}
    return f"localhost/weft-python:{digest({}, dockerfile=recipe, args=args)}"


def ensure_base(report: Callable[[str], None], *, arch: str | None = None) -> str:
    """Build the base image unless the local store has it; return its name."""
    arch = arch or native()
    ref = base_ref(arch)
    if buildah.exists(ref):
        return ref
    report(f"building {ref} from Debian packages")
    tag = ref.rpartition(":")[2]
    archive = images_cache() / f"python-{SUITE}-{tag}.tar"
    if not archive.is_file():
        make_archive(archive, arch=arch)
    with tempfile.TemporaryDirectory(dir=images_cache(), prefix="base-") as folder:
        context = Path(folder)
        (context / "rootfs.tar").hardlink_to(archive)
        shutil.copyfile(repository_root() / DOCKERFILE, context / "Dockerfile")
        buildah.build(
            ref,
            context=context,
            dockerfile="Dockerfile",
            args={},
            log=images_cache() / "logs/weft-python.log",
            passthrough=False,
            arch=arch,
        )
    return ref


def make_archive(archive: Path, *, arch: str) -> None:
    """Write a Debian root folder with Python as a tar file."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="debootstrap-") as folder:
        root = Path(folder) / "root"
        make_root(root, PACKAGES, arch=arch, log=images_cache() / "logs/debootstrap.log")
        partial = Path(folder) / "rootfs.tar"
        subprocess.run(
            ["tar", "--create", "--numeric-owner", "--file", str(partial), "--directory", str(root), "."],
            check=True,
            timeout=300,
        )
        partial.rename(archive)


def make_root(root: Path, packages: Sequence[str], *, log: Path, arch: str | None = None) -> None:
    """Fill a folder with a small Debian and some packages, from the mirror that this machine uses itself."""
    mirror = debian_mirror()
    if shutil.which("debootstrap") is None:
        raise CannotBuildError(
            "debootstrap is missing: apt-get install debootstrap (or run 'make setup' as root on Debian)"
        )
    options = ["--variant=minbase", f"--arch={arch or native()}", f"--include={','.join(packages)}"]
    words = ["debootstrap", *options, SUITE, str(root), mirror]
    run_logged(words, log=log, what="debootstrap")
    for package in (root / "var/cache/apt/archives").glob("*.deb"):
        package.unlink()


def debian_mirror() -> str:
    """Return the Debian mirror that this machine's own package sources name."""
    if shutil.which("apt-get") is None:
        raise CannotBuildError(
            "the base image is made from Debian packages, and this machine has no apt-get: name one with --python-image"
        )
    words = [
        "apt-get",
        "indextargets",
        "--format",
        "$(ORIGIN) $(LABEL) $(COMPONENT) $(REPO_URI)",
        "Created-By: Packages",
    ]
    listed = subprocess.run(words, capture_output=True, text=True, timeout=60)
    for line in listed.stdout.splitlines():
        fields = line.split()
        # "Debian Debian main URI": the security archive is labelled Debian-Security and holds no whole release.
        if fields[:3] == ["Debian", "Debian", "main"] and len(fields) == 4:
            return fields[3]
    raise CannotBuildError(
        "this machine's package sources name no Debian mirror (run apt-get update), so name a base with --python-image"
    )
