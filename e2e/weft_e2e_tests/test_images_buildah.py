"""Real builds: an image is built, found again, and pushed to a registry on loopback."""

import http.client
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyscipopt
import pytest

from weft_e2e.images import BuildFailedError, buildah
from weft_e2e.images.architectures import ARCHITECTURES
from weft_e2e.images.catalogue import repository_root
from weft_e2e_tests.oci_registry import registry as registry  # the fixture

pytestmark = [
    pytest.mark.component,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("buildah") is None, reason="needs root and buildah"),
]


@pytest.fixture
def ref() -> Iterator[str]:
    name = f"localhost/weft-test-{uuid.uuid4().hex[:12]}:1"
    yield name
    subprocess.run(["buildah", "rmi", "--force", name], capture_output=True, timeout=60, check=False)


def build_small(ref: str, folder: Path, dockerfile: str, *, arch: str | None = None) -> None:
    (folder / "word").write_text("warp")
    (folder / "Dockerfile").write_text(dockerfile)
    buildah.build(ref, context=folder, dockerfile="Dockerfile", args={"NAME": "x"}, log=folder / "log", arch=arch)


def pulled(registry: str, path: str) -> Any:
    """Return a JSON document as a client of the registry gets it."""
    kinds = ("oci.image.index.v1", "oci.image.manifest.v1", "docker.distribution.manifest.list.v2")
    accept = ", ".join(f"application/vnd.{kind}+json" for kind in kinds)
    connection = http.client.HTTPConnection(registry, timeout=30)
    connection.request("GET", f"/v2/team/weft-test/{path}", headers={"Accept": accept})
    try:
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return json.load(answer)
    finally:
        connection.close()


def test_an_image_is_built_found_and_pushed(ref: str, registry: str, tmp_path: Path) -> None:
    assert not buildah.exists(ref)
    build_small(ref, tmp_path, "FROM scratch\nARG NAME\nCOPY word /word\nUSER 65532:65532\n")
    assert buildah.exists(ref)
    assert 0 < buildah.megabytes(ref) < 1
    destination = f"docker://{registry}/team/weft-test:v1"
    buildah.push(ref, destination, options=["--tls-verify=false"], log=tmp_path / "push.log")
    config = pulled(registry, f"blobs/{pulled(registry, 'manifests/v1')['config']['digest']}")
    assert config["config"]["User"] == "65532:65532"
    assert config["architecture"] == "amd64"


def test_one_name_has_an_image_for_each_architecture(ref: str, registry: str, tmp_path: Path) -> None:
    refs = [f"{ref}-{arch}" for arch in ARCHITECTURES]
    try:
        for name, arch in zip(refs, ARCHITECTURES, strict=True):
            build_small(name, tmp_path, "FROM scratch\nCOPY word /word\n", arch=arch)
        destination = f"docker://{registry}/team/weft-test:v1"
        buildah.push_for_all(refs, destination, options=["--tls-verify=false"], log=tmp_path / "push.log")
        index = pulled(registry, "manifests/v1")["manifests"]
        assert [entry["platform"]["architecture"] for entry in index] == list(ARCHITECTURES)
        assert len({entry["digest"] for entry in index}) == len(index)
        for entry in index:
            config = pulled(registry, f"manifests/{entry['digest']}")["config"]["digest"]
            assert pulled(registry, f"blobs/{config}")["architecture"] == entry["platform"]["architecture"]
    finally:
        subprocess.run(["buildah", "rmi", "--force", *refs], capture_output=True, timeout=60, check=False)
    assert not [name for name in buildah.names() if "/index-" in name]


def test_equal_content_gives_equal_layers(ref: str, tmp_path: Path) -> None:
    digests = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        build_small(ref, folder, "FROM scratch\nCOPY word /word\n")
        asked = ["buildah", "inspect", "--type", "image", "--format", "{{.FromImageID}}", ref]
        digests.append(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout)
        subprocess.run(["buildah", "rmi", "--force", ref], capture_output=True, check=True, timeout=60)
    assert digests[0] == digests[1]


def test_a_failed_build_shows_the_end_of_its_log_and_leaves_no_container(ref: str, tmp_path: Path) -> None:
    with pytest.raises(BuildFailedError, match=r"(?s)building localhost/.* failed .*missing-file"):
        build_small(ref, tmp_path, f"FROM scratch\nLABEL test={ref}\nCOPY missing-file /\n")
    listed = subprocess.run(["buildah", "containers", "--json"], capture_output=True, text=True, check=True, timeout=60)
    for container in json.loads(listed.stdout or "null") or []:
        asked = ["buildah", "inspect", container["id"]]
        assert ref not in subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False).stdout


def test_a_failed_push_shows_the_reason(tmp_path: Path) -> None:
    with pytest.raises(BuildFailedError, match=r"pushing docker://127\.0\.0\.1:1/x failed"):
        buildah.push("localhost/weft-none:0", "docker://127.0.0.1:1/x", options=(), log=tmp_path / "push.log")


def test_trimmed_root_runs_its_program_and_has_no_shell(tmp_path: Path) -> None:
    root = tmp_path / "rootfs"
    trim = repository_root() / "images/trim.py"
    program = shutil.which("sleep")
    assert program is not None
    words = [sys.executable, str(trim), "--into", str(root), "--program", program]
    subprocess.run(words, check=True, timeout=60, capture_output=True)
    inside = os.path.realpath(Path(program).parent)
    subprocess.run(["chroot", str(root), f"{inside}/sleep", "0"], check=True, timeout=20)
    programs = {path.name for path in root.rglob("*") if path.is_file() and os.access(path, os.X_OK)}
    assert not programs & {"sh", "bash", "dash", "apt-get", "dpkg", "pip"}
    assert "weft:x:65532:65532" in (root / "etc/passwd").read_text()
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777


def test_libraries_without_symbols_are_smaller_and_work(tmp_path: Path) -> None:
    """One of PySCIPOpt's is nine tenths symbols, with a segment behind them that the maker of its wheel added."""
    found = importlib.util.spec_from_file_location("trim", repository_root() / "images/trim.py")
    assert found is not None
    assert found.loader is not None
    trim = importlib.util.module_from_spec(found)
    found.loader.exec_module(trim)
    installed = Path(pyscipopt.__file__).parents[1]
    sizes = []
    for name in ("pyscipopt", "pyscipopt.libs", "numpy", "numpy.libs"):
        shutil.copytree(installed / name, tmp_path / name)
        libraries = [path for path in (tmp_path / name).rglob("*.so*") if trim.is_elf(path)]
        before = sum(path.stat().st_size for path in libraries)
        for path in libraries:
            trim.drop_symbols(path)
        sizes.append((before, sum(path.stat().st_size for path in libraries)))
    assert sizes[0][1] < 0.2 * sizes[0][0]
    assert all(after < before for before, after in sizes)
    program = (
        "import numpy, pyscipopt\n"
        "m = pyscipopt.Model(); m.hideOutput(); x = m.addVar(vtype='I', ub=7); m.setObjective(-x); m.optimize()\n"
        "print(pyscipopt.__file__, m.getObjVal() + numpy.linalg.inv(numpy.eye(2) * 2)[0, 0])"
    )
    words = [sys.executable, "-c", program]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(tmp_path / "pyscipopt/__init__.py"), "-6.5"]


def test_trim_stops_when_a_library_is_missing(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    program = shutil.which("sleep")
    assert program is not None
    # One letter less, so that the loader asks for a library that no machine has.
    content = Path(program).read_bytes()
    assert b"libc.so.6\0" in content
    broken.write_bytes(content.replace(b"libc.so.6\0", b"libq.so.6\0"))
    broken.chmod(0o755)
    words = [
        sys.executable,
        str(repository_root() / "images/trim.py"),
        "--into",
        str(tmp_path / "r"),
        "--program",
        str(broken),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "shared library is missing" in done.stderr
    assert "libq.so.6" in done.stderr
