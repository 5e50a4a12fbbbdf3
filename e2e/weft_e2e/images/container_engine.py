"""Docker or Podman, whichever answers on this machine: builds images without root, and saves them as archives."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from weft_e2e.images.commands import run_logged
from weft_e2e.images.errors import CannotBuildError

ENGINES: tuple[Literal["docker", "podman"], ...] = ("docker", "podman")
ANSWER_SECONDS = 60
# BuildKit would add a provenance record, and `kind load` fails on an image whose manifest list names more than itself.
ENVIRONMENT = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}


@dataclass(frozen=True)
class ContainerEngine:
    """A container engine by the name of its command, which is the same for both in what is used here."""

    name: Literal["docker", "podman"]

    def exists(self, ref: str) -> bool:
        """Return whether the engine has an image of this name."""
        return _answers([self.name, "image", "inspect", ref])

    def build(self, ref: str, *, context: Path, dockerfile: str, args: Mapping[str, str], log: Path) -> None:
        """Build one image from a prepared context; the log file holds everything that the build said."""
        words = [self.name, "build", "--file", str(context / dockerfile), "--tag", ref]
        given = dict(args)
        if index := os.environ.get("PIP_INDEX_URL"):
            given["PIP_INDEX_URL"] = index
        for name, value in given.items():
            words += ["--build-arg", f"{name}={value}"]
        run_logged([*words, str(context)], log=log, what=f"building {ref}", env=os.environ | ENVIRONMENT)

    def save(self, ref: str, archive: Path, *, log: Path) -> None:
        """Write an image into an archive as `docker save` makes it."""
        words = [self.name, "save", "--output", str(archive)]
        if self.name == "podman":
            words += ["--format", "docker-archive"]
        run_logged([*words, ref], log=log, what=f"saving {ref}")


def find_engine() -> ContainerEngine:
    """Return the first engine whose daemon or machine answers.

    Raises:
        CannotBuildError: none does.
    """
    for name in ENGINES:
        if shutil.which(name) is not None and _answers([name, "info"]):
            return ContainerEngine(name)
    raise CannotBuildError("neither `docker info` nor `podman info` answers: install or start one of them")


def _answers(argv: list[str]) -> bool:
    try:
        return subprocess.run(argv, capture_output=True, timeout=ANSWER_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False
