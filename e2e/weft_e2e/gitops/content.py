"""The repository that Argo CD reads: the chart, and one folder for each service."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

from weft_e2e.images.catalogue import repository_root
from weft_e2e.kube import Object

CHART = "charts/weft"


@dataclass(frozen=True, slots=True)
class Content:
    """A git repository on disk, with its work tree."""

    folder: Path

    def commit(self, words: str) -> None:
        """Commit all that is there now."""
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", words)

    def head(self) -> str:
        """Return the newest commit."""
        return self._git("rev-parse", "HEAD").strip()

    def chart(self) -> None:
        """Take in the chart as it is."""
        shutil.copytree(repository_root() / CHART, self.folder / CHART)

    def manifest(self, name: str) -> Path:
        """Return the file of a service."""
        return self.folder / "services" / name / "service.yaml"

    def service(self, body: Object) -> None:
        """Write a service's file."""
        file = self.manifest(body["metadata"]["name"])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(body, sort_keys=False))

    def _git(self, *args: str) -> str:
        who = ("-c", "user.name=weft", "-c", "user.email=weft@localhost", "-c", "commit.gpgsign=false")
        argv = ["git", "-C", str(self.folder), *who, *args]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout


def new_content(folder: Path) -> Content:
    """Return an empty repository in a folder."""
    folder.mkdir(parents=True)
    content = Content(folder)
    content._git("init", "--quiet", "--initial-branch=main")
    return content
