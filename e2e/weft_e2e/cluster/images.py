"""Images on the nodes: brought there without a registry, and only when they are not there yet."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from weft_e2e.cluster import archives
from weft_e2e.cluster.archives import ImageArchive
from weft_e2e.cluster.errors import CommandError
from weft_e2e.cluster.node import CONTAINERD_SOCKET
from weft_e2e.cluster.paths import cache_root
from weft_e2e.cluster.toolchain import tool_path

# Which build a node's image came from. The label lives in the node's own store, so it is lost with the image.
LABEL = "weft.dev/image-identity"
IMPORT_SECONDS = 300.0
LISTINGS = 5
NOBODY = 65532


def system_images() -> tuple[ImageArchive, ImageArchive]:
    """Return the pause and CoreDNS images, written into the cache when they are not there."""
    folder = cache_root() / "images"
    pause = archives.single_program(folder, "pause", tool_path("pause"), user=NOBODY)
    # CoreDNS listens on port 53 inside its pod, which takes root or a file capability.
    coredns = archives.single_program(folder, "coredns", tool_path("coredns"), user=0)
    return pause, coredns


def present(pid: int) -> dict[str, str]:
    """Return name -> identity of the images in the containerd of the node whose first process is `pid`."""
    return parse_images(_ctr(pid, "images", "ls"))


def parse_images(listing: str) -> dict[str, str]:
    """Return name -> identity label ("" without one) from the table that `ctr images ls` prints."""
    found = {}
    for line in listing.splitlines()[1:]:
        words = line.split()
        labels = dict(pair.partition("=")[::2] for pair in words[-1].split(","))
        found[words[0]] = labels.get(LABEL, "")
    return found


def load(nodes: dict[str, int], sources: Sequence[str], progress: Callable[[str], None]) -> None:
    """Bring every source to every node; `nodes` maps a node to its first process.

    A source is the name of an image in buildah's local storage, or the path of an OCI or Docker archive.
    """
    with tempfile.TemporaryDirectory(prefix="weft-load-") as scratch:
        for number, source in enumerate(sources):
            if Path(source).is_file():
                import_everywhere(nodes, archives.read(Path(source)), progress)
                continue
            name, identity = _buildah_image(source)
            waiting = {node: pid for node, pid in nodes.items() if present(pid).get(name) != identity}
            if not waiting:
                progress(f"{name}: already on every node")
                continue
            file = Path(scratch) / f"{number}.tar"
            # Uncompressed: the archive is read once per node and thrown away.
            push = ["buildah", "push", "--quiet", "--disable-compression", name, f"oci-archive:{file}:{name}"]
            _run(push, f"`buildah push {source}`")
            import_everywhere(waiting, [ImageArchive(name, identity, file)], progress)
            file.unlink()


def import_everywhere(nodes: dict[str, int], images: Sequence[ImageArchive], progress: Callable[[str], None]) -> None:
    """Import archives into the nodes that do not hold just these images, two nodes at a time."""

    def one(item: tuple[str, int]) -> list[str]:
        node, pid = item
        there = present(pid)
        done = []
        for image in images:
            if there.get(image.name) == image.identity:
                continue
            _ctr(pid, "images", "import", "--all-platforms", str(image.file))
            _ctr(pid, "images", "label", image.name, f"{LABEL}={image.identity}")
            done.append(f"{image.name}: imported on {node}")
        return done

    with ThreadPoolExecutor(max_workers=2) as pool:
        results = list(pool.map(one, nodes.items()))
    for line in (line for lines in results for line in lines):
        progress(line)


def answers(pid: int) -> bool:
    """Return whether the node's containerd is up."""
    argv = ["ctr", "--address", _socket(pid), "version"]
    try:
        return subprocess.run(argv, capture_output=True, timeout=10).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _buildah_image(source: str) -> tuple[str, str]:
    """Return (full name, identity) of an image in buildah's local storage, or raise CommandError."""
    identities: dict[str, str] = {}
    for entry in _stored_images():
        names = entry.get("names")
        if isinstance(names, list):
            identities |= {str(name): f"sha256:{str(entry['id']).removeprefix('sha256:')}" for name in names}
    name = full_name(source, list(identities))
    if name is None:
        raise CommandError(f"{source!r}: no such image in buildah's storage (`buildah images`), and no such file")
    return name, identities[name]


def _stored_images() -> list[dict[str, object]]:
    """Return buildah's list of images; it fails where one is removed while it is made, and is then made again."""
    tries = 0
    while True:
        tries += 1
        try:
            found: list[dict[str, object]] = json.loads(_run(["buildah", "images", "--json"], "`buildah images`"))
        except CommandError as error:
            if "image not known" not in str(error) or tries == LISTINGS:
                raise
        else:
            return found


def full_name(source: str, stored: Sequence[str]) -> str | None:
    """Return the stored name that `source` means: itself, or the one in localhost, or the only one that ends so."""
    wanted = source if ":" in source.rpartition("/")[2] else f"{source}:latest"
    for name in (wanted, f"localhost/{wanted}"):
        if name in stored:
            return name
    ending = [name for name in stored if name.endswith(f"/{wanted}")]
    return ending[0] if len(ending) == 1 else None


def _socket(pid: int) -> str:
    # The node's /run is its own; this path leads through the mount namespace of its first process.
    return f"/proc/{pid}/root{CONTAINERD_SOCKET}"


def _ctr(pid: int, *args: str) -> str:
    return _run(["ctr", "--address", _socket(pid), "--namespace", "k8s.io", *args], f"`ctr {' '.join(args)}`")


def _run(argv: list[str], what: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        raise CommandError(f"{what} did not end within {IMPORT_SECONDS:.0f} s") from None
    if done.returncode != 0:
        raise CommandError(f"{what} failed: {done.stderr.strip()[-1500:]}")
    return done.stdout
