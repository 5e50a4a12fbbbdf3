"""A real build of images/vllm: the plug-in is made into a wheel, installed into the base image and switched on.

An image with Python and pip stands in for vLLM's own, of some 10 GB; `make e2e-engine` runs the plug-in in vLLM itself.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from weft_e2e.images import buildah
from weft_e2e.images.base import ensure_base
from weft_e2e.images.catalogue import repository_root
from weft_e2e.images.content import context_files, copied_paths, stage
from weft_e2e.images.shelf import one_at_a_time

pytestmark = [
    pytest.mark.component,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("buildah") is None, reason="needs root and buildah"),
]

DOCKERFILE = "images/vllm/Dockerfile"
STAND_IN = """
ARG PYTHON_IMAGE
FROM ${PYTHON_IMAGE}
RUN python3 -m venv /opt/engine
ENV PATH=/opt/engine/bin:/usr/bin:/bin VLLM_PLUGINS=before
ENTRYPOINT ["vllm", "serve"]
"""
LOOK = """
import hashlib, json, pathlib
from importlib.metadata import distribution, entry_points
files = [file for file in distribution("weft-vllm").files if file.suffix == ".py"]
print(json.dumps({
    "entry points": [[point.name, point.value] for point in entry_points(group="vllm.endpoint_plugins")],
    "files": {str(file): hashlib.sha256(file.locate().read_bytes()).hexdigest() for file in files},
    "left": [path for path in ("/dist", "/src", "/build", "/tmp/weft-plugin") if pathlib.Path(path).exists()],
}))
"""


def test_the_plug_in_is_in_the_image_and_switched_on(tmp_path: Path) -> None:
    root, name = repository_root(), f"localhost/weft-test-{uuid.uuid4().hex[:12]}"
    refs = [f"{name}:base", f"{name}:vllm"]
    dockerfile = (root / DOCKERFILE).read_text()
    with one_at_a_time(), images_removed(refs):
        base = ensure_base(print)
        (tmp_path / "base").mkdir()
        (tmp_path / "base" / "Dockerfile").write_text(STAND_IN)
        args = {"PYTHON_IMAGE": base}
        buildah.build(refs[0], context=tmp_path / "base", dockerfile="Dockerfile", args=args, log=tmp_path / "base.log")
        context = tmp_path / "context"
        stage(context_files(root, (*copied_paths(dockerfile), DOCKERFILE), outside={}), context)
        args |= {"VLLM_IMAGE": refs[0]}
        buildah.build(refs[1], context=context, dockerfile=DOCKERFILE, args=args, log=tmp_path / "vllm.log")
        seen = json.loads(inside(refs[1], "python3", "-c", LOOK))
        config = json.loads(said("inspect", "--type", "image", refs[1]))["OCIv1"]["config"]
    sources = context_files(root / "images/vllm/plugin", ("weft_vllm",), outside={}).items()
    expected = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sources if path.suffix == ".py"}
    assert seen["entry points"] == [["weft_kv", "weft_vllm.plugin:Plugin"]]
    assert seen["files"] == expected
    assert not seen["left"]
    (plugins,) = re.findall(r"^ENV VLLM_PLUGINS=(\S+)$", dockerfile, re.MULTILINE)
    assert f"VLLM_PLUGINS={plugins}" in config["Env"]
    assert config["Entrypoint"] == ["vllm", "serve"]  # as the base image starts


@contextmanager
def images_removed(refs: list[str]) -> Iterator[None]:
    """Remove the images afterwards; layers that other images share stay."""
    try:
        yield
    finally:
        for ref in reversed(refs):
            subprocess.run(buildah.command("rmi", "--force", ref), capture_output=True, timeout=60, check=False)


def inside(ref: str, *words: str) -> str:
    """Return what a program prints in a container of an image."""
    container = said("from", ref).strip()
    try:
        return said("run", "--isolation", "chroot", container, "--", *words)
    finally:
        said("rm", container)


def said(*words: str) -> str:
    """Return what buildah prints."""
    done = subprocess.run(buildah.command(*words), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
