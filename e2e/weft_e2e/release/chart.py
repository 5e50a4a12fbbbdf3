"""Package the Helm chart for a registry, and push it there as an OCI artifact."""

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
    digests: Mapping[str, str] | None = None,
) -> Path:
    """Package the chart with ``registry`` as its image registry, and return the archive's path.

    A ``tag`` other than the version of the chart's images becomes the chart's ``appVersion``. ``digests`` pins
    third-party images, by their names in ``values.yaml``.

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
        (copy / "values.yaml").write_text(_with_digests(filled, digests or {}))
        into.mkdir(parents=True, exist_ok=True)
        versions = ["--app-version", tag] if tag else []
        output = _run_helm([helm, "package", str(copy), "--destination", str(into), *versions])
    return Path(output.rpartition("saved it to:")[2].strip())


def _with_digests(values: str, digests: Mapping[str, str]) -> str:
    """Return ``values.yaml`` with third-party images by digest; the tag stays as a comment."""
    for image, digest in digests.items():
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
    output = _run_helm([helm, "push", str(archive), target, *options])
    digest = re.search(r"Digest: (sha256:[0-9a-f]{64})", output)
    if digest is None:
        raise ReleaseError(f"`helm push` reported no digest for {target}: {output.strip()}")
    return f"{target}/weft@{digest[1]}"


def _run_helm(command: Sequence[str]) -> str:
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=HELM_SECONDS, check=False)
    except FileNotFoundError:
        raise ReleaseError(f"{command[0]} is missing: install Helm 3.14 or newer and put it on PATH") from None
    except subprocess.TimeoutExpired:
        raise ReleaseError(f"`helm {command[1]}` did not end within {HELM_SECONDS} s") from None
    if completed.returncode != 0:
        raise ReleaseError(f"`helm {command[1]}` failed: {completed.stderr.strip()}")
    return completed.stdout + completed.stderr  # which of the two carries the digest differs between Helm 3 and 4
