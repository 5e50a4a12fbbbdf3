"""The chart as an OCI artifact in a real registry: pushed, pulled by reference, and rendered without any values."""

import subprocess
from pathlib import Path

import pytest
import yaml

from weft_e2e.cluster.toolchain import tool_path
from weft_e2e.images.catalogue import repository_root
from weft_e2e.release import ReleaseError, package_chart, push_chart
from weft_e2e_tests.oci_registry import registry as registry  # the fixture

pytestmark = pytest.mark.component


def helm(*command: str) -> str:
    completed = subprocess.run(
        [str(tool_path("helm")), *command], capture_output=True, text=True, timeout=60, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def package(into: Path, *, tag: str = "") -> Path:
    archive = package_chart(
        "registry.example.com/team", root=repository_root(), into=into, helm=str(tool_path("helm")), tag=tag
    )
    assert archive.is_file()
    return archive


def images_of(text: str) -> set[str]:
    """Return the images of the operator's Deployment."""
    (operator,) = (
        item
        for item in yaml.safe_load_all(text)
        if item and item["kind"] == "Deployment" and item["metadata"]["name"].endswith("operator")
    )
    return {container["image"] for container in operator["spec"]["template"]["spec"]["containers"]}


def test_a_pushed_chart_installs_by_reference_with_the_images_of_its_registry(registry: str, tmp_path: Path) -> None:
    archive = package(tmp_path / "dist")
    reference = push_chart(archive, registry, helm=str(tool_path("helm")), options=["--plain-http"])
    assert reference.startswith(f"oci://{registry}/charts/weft@sha256:")
    version = archive.name.removeprefix("weft-").removesuffix(".tgz")

    text = helm("template", "weft", f"oci://{registry}/charts/weft", "--version", version, "--plain-http")
    assert images_of(text) == {f"registry.example.com/team/weft-operator:{version}"}
    own = ["--set", "image.registry=registry.example.org/mine", "--set", "image.tag=v9"]
    text = helm("template", "weft", f"oci://{registry}/charts/weft", "--version", version, "--plain-http", *own)
    assert images_of(text) == {"registry.example.org/mine/weft-operator:v9"}


def test_a_tag_becomes_the_default_of_the_packaged_chart(tmp_path: Path) -> None:
    assert images_of(helm("template", "weft", str(package(tmp_path, tag="v7")))) == {
        "registry.example.com/team/weft-operator:v7"
    }


def test_images_of_others_are_named_by_digest_where_it_is_given(tmp_path: Path) -> None:
    digest = f"sha256:{'0123456789abcdef' * 4}"

    def packaged(image: str, digest: str) -> Path:
        root, helm = repository_root(), str(tool_path("helm"))
        return package_chart("registry.example.com/team", root=root, into=tmp_path, helm=helm, digests={image: digest})

    text = helm("template", "weft", str(packaged("redis:7-bookworm", digest)))
    assert f"image: redis@{digest}" in text.replace('"', "")
    with pytest.raises(ReleaseError, match="expected one line 'image: redis:6', found 0"):
        packaged("redis:6", digest)
    with pytest.raises(ReleaseError, match="is no digest"):
        packaged("redis:7-bookworm", "7")


def test_a_registry_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"helm push` failed: .*127\.0\.0\.1:1"):
        push_chart(package(tmp_path), "127.0.0.1:1", helm=str(tool_path("helm")), options=["--plain-http"])
