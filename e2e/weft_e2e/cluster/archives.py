"""Image archives: made here for the images that hold one static program, read here for their identity."""

import hashlib
import io
import json
import lzma
import os
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from weft_e2e.cluster.errors import CommandError

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class ImageArchive:
    """An image archive on disk. `identity` changes when the content does."""

    name: str
    identity: str
    file: Path


def single_program(folder: Path, entry: str, program: Path, *, user: int) -> ImageArchive:
    """Write an image that holds `program` alone, as /`entry`; its tag and file name follow from the content."""
    layer = _tar({entry: (program.read_bytes(), 0o755)})
    config = json.dumps(
        {
            "architecture": ARCHITECTURES.get(os.uname().machine, os.uname().machine),
            "os": "linux",
            "config": {"Entrypoint": [f"/{entry}"], "User": f"{user}:{user}"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        },
        sort_keys=True,
    ).encode()
    identity = hashlib.sha256(config).hexdigest()
    reference = f"localhost/weft-{entry}:{identity[:12]}"
    file = folder / f"{entry}-{identity[:12]}.tar"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        manifest = [{"Config": f"{identity}.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]
        parts = {
            "manifest.json": (json.dumps(manifest).encode(), 0o644),
            f"{identity}.json": (config, 0o644),
            "layer.tar": (layer, 0o644),
        }
        temporary = file.with_name(f".{file.name}.{os.getpid()}")
        temporary.write_bytes(_tar(parts))
        temporary.rename(file)
    return ImageArchive(reference, f"sha256:{identity}", file)


def read(file: Path) -> list[ImageArchive]:
    """Return the named images in an OCI or Docker archive, or raise CommandError where there are none."""
    try:
        with tarfile.open(file) as archive:
            images = _docker(archive, file) or _oci(archive, file)
    except (OSError, EOFError, lzma.LZMAError, zlib.error, tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{file} is not an OCI or Docker image archive: {error}") from error
    if not images:
        raise CommandError(f"{file} holds no image with a name: write it as oci-archive:FILE:NAME:TAG")
    return images


def _docker(archive: tarfile.TarFile, file: Path) -> list[ImageArchive]:
    manifest = _member(archive, "manifest.json")
    if manifest is None:
        return []
    return [
        ImageArchive(
            _qualified(name), f"sha256:{Path(entry['Config']).name.removesuffix('.json').removeprefix('sha256:')}", file
        )
        for entry in manifest
        for name in entry["RepoTags"] or []
    ]


def _oci(archive: tarfile.TarFile, file: Path) -> list[ImageArchive]:
    index = _member(archive, "index.json")
    if index is None:
        return []
    images = []
    for entry in index["manifests"]:
        annotations = entry.get("annotations") or {}
        name = annotations.get("io.containerd.image.name") or annotations.get("org.opencontainers.image.ref.name")
        if name:
            images.append(ImageArchive(_qualified(name), entry["digest"], file))
    return images


def _member(archive: tarfile.TarFile, name: str):  # type: ignore[no-untyped-def]  # JSON of a foreign program
    for spelling in (name, f"./{name}"):
        try:
            opened = archive.extractfile(spelling)
        except KeyError:
            continue
        if opened is not None:
            return json.loads(opened.read())
    return None


def _qualified(name: str) -> str:
    """Return the name as Kubernetes resolves it: "redis:7" is docker.io/library/redis:7."""
    head, slash, _ = name.partition("/")
    full = (
        name
        if slash and ("." in head or ":" in head or head == "localhost")
        else f"docker.io/{name if slash else f'library/{name}'}"
    )
    return full if ":" in full.rpartition("/")[2] or "@" in full else f"{full}:latest"


def _tar(parts: dict[str, tuple[bytes, int]]) -> bytes:
    """Return a tar of files whose bytes depend on nothing but `parts`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, (content, mode) in parts.items():
            header = tarfile.TarInfo(name)
            header.size, header.mode = len(content), mode
            archive.addfile(header, io.BytesIO(content))
    return buffer.getvalue()
