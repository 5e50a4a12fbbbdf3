"""The chart as an OCI artifact: packaged with the registry that holds its images, and pushed beside them."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from weft_e2e.release.errors import ReleaseError

CHART = "charts/weft"
REPOSITORY = "charts"
"""Helm adds the chart's name: the chart is pushed to ``<registry>/charts/weft``."""
HELM_SECONDS = 120
_REGISTRY_VALUE = re.compile(r'^(image:\n(?:  .*\n)*?  registry: )""$', re.MULTILINE)


def package_chart(
    registry: str,
    *,
    root: Path,
    into: Path,
    helm: str = "helm",
    tag: str = "",
    pins: Mapping[str, str] | None = None,
) -> Path:
    """Package the chart and return the archive; without further values it pulls images from ``registry``.

    A ``tag`` other than the version of the chart's images becomes the chart's ``appVersion``. ``pins`` are the digests
    of images of others by the names that ``values.yaml`` has for them.

    Raises:
        ReleaseError: ``values.yaml`` has no empty ``image.registry`` to fill in, or no such image; or Helm fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "weft"
        shutil.copytree(root / CHART, copy)
        values = (copy / "values.yaml").read_text()
        filled, count = _REGISTRY_VALUE.subn(rf'\g<1>"{registry}"', values)
        if count != 1:
            raise ReleaseError(f"{CHART}/values.yaml: expected one line 'registry: \"\"' below image:, found {count}")
        (copy / "values.yaml").write_text(_pinned(filled, pins or {}))
        into.mkdir(parents=True, exist_ok=True)
        versions = ["--app-version", tag] if tag else []
        said = _run([helm, "package", str(copy), "--destination", str(into), *versions])
    return Path(said.rpartition("saved it to:")[2].strip())


def _pinned(values: str, pins: Mapping[str, str]) -> str:
    """Name images of others by digest; the tag stays beside it, for people."""
    for image, digest in pins.items():
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise ReleaseError(f"{image}: {digest!r} is no digest; use sha256: and 64 hexadecimal digits")
        name, _, tag = image.partition(":")
        line = re.compile(rf"^(\s+image: ){re.escape(image)}$", re.MULTILINE)
        values, count = line.subn(rf"\g<1>{name}@{digest} # {tag}", values)
        if count != 1:
            raise ReleaseError(f"{CHART}/values.yaml: expected one line 'image: {image}', found {count}")
    return values


def push_chart(archive: Path, registry: str, *, helm: str = "helm", options: Sequence[str] = ()) -> str:
    """Push a packaged chart and return its reference, with the digest that Helm reports.

    Raises:
        ReleaseError: the registry refuses the chart; credentials are Helm's own (``helm registry login``).
    """
    target = f"oci://{registry}/{REPOSITORY}"
    said = _run([helm, "push", str(archive), target, *options])
    digest = re.search(r"Digest: (sha256:[0-9a-f]{64})", said)
    if digest is None:
        raise ReleaseError(f"`helm push` reported no digest for {target}: {said.strip()}")
    return f"{target}/weft@{digest[1]}"


def _run(words: Sequence[str]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=HELM_SECONDS, check=False)
    except FileNotFoundError:
        raise ReleaseError(f"{words[0]} is missing: install Helm 3.14 or newer and put it on PATH") from None
    except subprocess.TimeoutExpired:
        raise ReleaseError(f"`helm {words[1]}` did not end within {HELM_SECONDS} s") from None
    if done.returncode != 0:
        raise ReleaseError(f"`helm {words[1]}` failed: {done.stderr.strip()}")
    return done.stdout + done.stderr  # which of the two carries the digest differs between Helm 3 and 4
