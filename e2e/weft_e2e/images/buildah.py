"""Runs buildah, and says what to do when it is missing or fails."""

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from weft_e2e.images import commands
from weft_e2e.images.errors import BuildFailedError, CannotBuildError

CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
CA_BUNDLE_INSIDE = "/run/weft-ca.crt"
QUICK_SECONDS = 120
_MEGABYTES = {"B": 1e-6, "KB": 1e-3, "MB": 1.0, "GB": 1e3}


def require() -> None:
    """Refuse, naming the missing part, when this machine cannot build images."""
    if shutil.which("buildah") is None:
        raise CannotBuildError("buildah is missing: apt-get install buildah (or run 'make setup' as root on Debian)")
    if os.geteuid() != 0:
        raise CannotBuildError("building images needs root, for buildah's chroot isolation and debootstrap")


def command(*words: str) -> list[str]:
    """Return a buildah command line for the machine's default store, which is where `weft cluster load` looks too."""
    return ["buildah", *words]


def exists(ref: str) -> bool:
    """Return whether the local store has an image of this name."""
    require()
    asked = subprocess.run(
        command("inspect", "--type", "image", "--format", "{{.FromImageID}}", ref),
        capture_output=True,
        timeout=QUICK_SECONDS,
    )
    return asked.returncode == 0


def megabytes(ref: str) -> float:
    """Return the size of an image of the local store, uncompressed."""
    require()
    words = command("images", "--json", ref)
    listed = subprocess.run(words, capture_output=True, text=True, timeout=QUICK_SECONDS)
    if listed.returncode != 0:
        raise BuildFailedError(f"listing {ref} failed: {listed.stderr.strip()}")
    size, unit = json.loads(listed.stdout)[0]["size"].split()
    return float(size) * _MEGABYTES[unit]


def host_passthrough() -> list[str]:
    """Return the options that let a build use this machine's own package sources, where it has any.

    They reach build stages only; final images start from scratch, so nothing of this machine gets into them.
    """
    options = ["--network", "host"]
    for inside, outside in (
        ("/etc/pip.conf", Path("/etc/pip.conf")),
        # pip reads this file for every user, so the build need not know whose home it runs in.
        ("/etc/xdg/pip/pip.conf", Path.home() / ".config/pip/pip.conf"),
    ):
        if outside.is_file():
            options += ["--volume", f"{outside}:{inside}:ro"]
    if CA_BUNDLE.is_file():
        # Mounted under another name than the base image's own bundle, which is the one that the final image keeps.
        options += ["--volume", f"{CA_BUNDLE}:{CA_BUNDLE_INSIDE}:ro", "--build-arg", f"PIP_CERT={CA_BUNDLE_INSIDE}"]
    if index := os.environ.get("PIP_INDEX_URL"):
        options += ["--build-arg", f"PIP_INDEX_URL={index}"]
    return options


def build(
    ref: str,
    *,
    context: Path,
    dockerfile: str,
    args: Mapping[str, str],
    log: Path,
    arch: str | None = None,
    passthrough: bool = True,
) -> None:
    """Build one image from a prepared context; the log file holds everything that the build said."""
    require()
    # Layers are kept so that a change of code does not install the dependencies again; the fixed time
    # stamp makes equal content give equal layers.
    words = [
        "bud",
        "--isolation",
        "chroot",
        "--layers",
        "--force-rm",
        "--timestamp",
        "0",
        "--file",
        str(context / dockerfile),
        "--tag",
        ref,
    ]
    if arch is not None:
        # buildah's layer cache ignores the architecture: the label keeps equal content from sharing an image.
        words += ["--arch", arch, "--label", f"weft.dev/architecture={arch}"]
    for name, value in args.items():
        words += ["--build-arg", f"{name}={value}"]
    if passthrough:
        words += host_passthrough()
    _run([*words, str(context)], log=log, what=f"building {ref}")


def push(ref: str, destination: str, *, options: Sequence[str], log: Path) -> None:
    """Copy an image from the local store to a transport such as docker://registry/name:tag."""
    require()
    _run(["push", *options, ref, destination], log=log, what=f"pushing {destination}")


def push_for_all(refs: Sequence[str], destination: str, *, options: Sequence[str], log: Path) -> None:
    """Push images of one program for several architectures under one name, as an image index."""
    require()
    index = f"localhost/index-{uuid.uuid4().hex}"
    _run(["manifest", "create", index, *refs], log=log, what=f"making the image index of {destination}")
    try:
        words = ["manifest", "push", "--all", *options, index, destination]
        _run(words, log=log, what=f"pushing {destination}")
    finally:
        _run(["manifest", "rm", index], log=log.with_suffix(".rm.log"), what="removing the image index")


def names() -> list[str]:
    """Return the full references of all images in the local store."""
    require()
    words = command("images", "--format", "{{.Name}}:{{.Tag}}")
    listed = subprocess.run(words, capture_output=True, text=True, timeout=QUICK_SECONDS)
    if listed.returncode != 0:
        raise BuildFailedError(f"listing images failed: {listed.stderr.strip()}")
    return [line for line in listed.stdout.split() if "<none>" not in line]


def remove(refs: Sequence[str], *, log: Path) -> None:
    """Remove images, and layers that nothing uses any more."""
    require()
    if refs:
        _run(["rmi", "--force", *refs], log=log, what="removing images")
    _run(["rmi", "--prune", "--force"], log=log, what="removing unused layers")


def _run(words: Sequence[str], *, log: Path, what: str) -> None:
    """Run buildah with its output in a file; raise with the end of it on failure."""
    commands.run_logged(command(*words), log=log, what=what)
