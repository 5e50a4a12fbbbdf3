"""Image archives and what the nodes say about their images."""

import io
import json
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weft_e2e.cluster import archives, images
from weft_e2e.cluster.errors import CommandError
from weft_e2e.cluster.images import full_name, parse_images


def test_an_image_of_one_program_is_read_back_as_written(tmp_path: Path) -> None:
    program = tmp_path / "hello"
    program.write_bytes(b"\x7fELF program")
    image = archives.single_program(tmp_path, "hello", program, user=65532)
    assert archives.read(image.file) == [image]
    assert image.name == f"localhost/weft-hello:{image.identity.removeprefix('sha256:')[:12]}"


def test_the_same_program_makes_the_same_image_and_another_one_another(tmp_path: Path) -> None:
    program = tmp_path / "hello"
    program.write_bytes(b"one")
    first = archives.single_program(tmp_path / "a", "hello", program, user=1)
    again = archives.single_program(tmp_path / "b", "hello", program, user=1)
    assert first.file.read_bytes() == again.file.read_bytes()
    program.write_bytes(b"two")
    assert archives.single_program(tmp_path / "a", "hello", program, user=1).name != first.name


def _archive(file: Path, parts: dict[str, object]) -> Path:
    with tarfile.open(file, "w") as archive:
        for name, content in parts.items():
            data = json.dumps(content).encode()
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return file


def test_an_oci_archive_is_known_by_its_manifest(tmp_path: Path) -> None:
    manifest = {"digest": "sha256:12", "annotations": {"org.opencontainers.image.ref.name": "localhost/weft-x:1"}}
    file = _archive(tmp_path / "oci.tar", {"index.json": {"manifests": [manifest]}})
    assert archives.read(file) == [archives.ImageArchive("localhost/weft-x:1", "sha256:12", file)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("redis", "docker.io/library/redis:latest"),
        ("redis:7", "docker.io/library/redis:7"),
        ("team/app", "docker.io/team/app:latest"),
        ("localhost/app:1", "localhost/app:1"),
        ("registry.example:5000/app", "registry.example:5000/app:latest"),
    ],
)
def test_short_names_are_completed_as_kubernetes_does(tmp_path: Path, name: str, expected: str) -> None:
    file = _archive(
        tmp_path / "docker.tar", {"manifest.json": [{"Config": "ab.json", "RepoTags": [name], "Layers": []}]}
    )
    assert [image.name for image in archives.read(file)] == [expected]


def test_an_archive_without_names_says_how_to_give_one(tmp_path: Path) -> None:
    file = _archive(tmp_path / "oci.tar", {"index.json": {"manifests": [{"digest": "sha256:12"}]}})
    with pytest.raises(CommandError, match="oci-archive:FILE:NAME:TAG"):
        archives.read(file)


@given(st.binary(max_size=300))
@example(b"\x1f\x8b")  # how gzip begins
@example(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff\xff")
@example(b"\xfd7zXZ\x00\x00\x04")  # how xz does
def test_a_file_that_is_no_archive_is_refused(content: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        file.write(content)
        file.flush()
        with pytest.raises(CommandError):
            archives.read(Path(file.name))


LISTING = """\
REF                 TYPE                            DIGEST      SIZE      PLATFORMS   LABELS
localhost/weft-a:1  application/vnd.oci.image+json  sha256:aa   18.0 MiB  linux/amd64 \
io.cri-containerd.image=managed,weft.dev/image-identity=sha256:11
localhost/weft-b:1  application/vnd.docker+json     sha256:bb   1.0 KiB   linux/amd64 -
"""


def test_labels_of_a_nodes_images_are_found() -> None:
    assert parse_images(LISTING) == {"localhost/weft-a:1": "sha256:11", "localhost/weft-b:1": ""}


STORED = ["localhost/weft-a:1", "localhost/weft-a:2", "localhost/b:latest", "quay.io/x/c:1", "docker.io/x/c:1"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("localhost/weft-a:2", "localhost/weft-a:2"),  # one image may have many names: the one asked for counts
        ("weft-a:1", "localhost/weft-a:1"),
        ("b", "localhost/b:latest"),
        ("quay.io/x/c:1", "quay.io/x/c:1"),
        ("c:1", None),  # two repositories have it
        ("weft-a", None),  # no tag "latest"
        ("nothing:1", None),
    ],
)
def test_a_name_in_buildahs_storage_is_never_guessed(source: str, expected: str | None) -> None:
    assert full_name(source, STORED) == expected


def test_a_list_of_images_is_made_again_where_one_was_removed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["image not known", "image not known", '[{"id": "1", "names": ["localhost/a:1"]}]']

    def run(_argv: list[str], what: str) -> str:
        answer = answers.pop(0)
        if not answer.startswith("["):
            raise CommandError(f"{what} failed: locating image with ID 7: {answer}")
        return answer

    monkeypatch.setattr(images, "_run", run)
    assert images._buildah_image("a:1") == ("localhost/a:1", "sha256:1")

    answers += ["image not known"] * images.LISTINGS
    with pytest.raises(CommandError, match="image not known"):
        images._buildah_image("a:1")
    assert not answers

    answers += ["permission denied"]
    with pytest.raises(CommandError, match="permission denied"):
        images._buildah_image("a:1")
