"""Real builds: an image is built, found again, and pushed to a registry on loopback."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from weft_e2e.images import BuildFailedError, buildah
from weft_e2e.images.catalogue import repository_root

pytestmark = [
    pytest.mark.component,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("buildah") is None, reason="needs root and buildah"),
]


class Registry(ThreadingHTTPServer):
    """The few calls of the OCI distribution protocol that a push makes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), RegistryHandler)
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class RegistryHandler(BaseHTTPRequestHandler):
    server: Registry
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is the base class's
        """Keep the test's output quiet."""

    def answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def do_GET(self) -> None:
        self.answer(200 if self.path == "/v2/" else 404)

    def do_HEAD(self) -> None:
        self.answer(200 if self.path.rpartition("/")[2] in self.server.blobs else 404)

    def do_POST(self) -> None:
        self.answer(202, Location=f"/upload/{uuid.uuid4().hex}")

    def do_PATCH(self) -> None:
        self.server.blobs[self.path] = self.body()
        self.answer(202, Location=self.path)

    def do_PUT(self) -> None:
        path, _, _query = self.path.partition("?")
        if "/manifests/" in path:
            content = self.body()
            self.server.manifests[path] = content
            self.answer(201, Docker_Content_Digest=f"sha256:{hashlib.sha256(content).hexdigest()}")
            return
        content = self.server.blobs.pop(path, b"") + self.body()
        self.server.blobs[f"sha256:{hashlib.sha256(content).hexdigest()}"] = content
        self.answer(201)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def ref() -> Iterator[str]:
    name = f"localhost/weft-test-{uuid.uuid4().hex[:12]}:1"
    yield name
    subprocess.run(["buildah", "rmi", "--force", name], capture_output=True, timeout=60, check=False)


def build_small(ref: str, folder: Path, dockerfile: str) -> None:
    (folder / "word").write_text("warp")
    (folder / "Dockerfile").write_text(dockerfile)
    buildah.build(ref, context=folder, dockerfile="Dockerfile", args={"NAME": "x"}, log=folder / "log")


def test_an_image_is_built_found_and_pushed(ref: str, registry: Registry, tmp_path: Path) -> None:
    assert not buildah.exists(ref)
    build_small(ref, tmp_path, "FROM scratch\nARG NAME\nCOPY word /word\nUSER 65532:65532\n")
    assert buildah.exists(ref)
    destination = f"docker://{registry.address}/team/weft-test:v1"
    buildah.push(ref, destination, options=["--tls-verify=false"], log=tmp_path / "push.log")
    manifest = json.loads(registry.manifests["/v2/team/weft-test/manifests/v1"])
    config = json.loads(registry.blobs[manifest["config"]["digest"]])
    assert config["config"]["User"] == "65532:65532"
    assert all(layer["digest"] in registry.blobs for layer in manifest["layers"])


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
