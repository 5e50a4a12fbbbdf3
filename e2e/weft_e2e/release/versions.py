"""Versions and notes of a release, read from the repository. Pure but for reading the files."""

import re
import tomllib
from pathlib import Path

import yaml

from weft_e2e.release.errors import ReleaseError

SEMVER = re.compile(r"\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?")


def declared_versions(root: Path) -> dict[str, str]:
    """Return the version that each file of a checkout declares, by file and field."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((root / "charts/weft/Chart.yaml").read_text())
    return {
        "pyproject.toml: project.version": project["version"],
        "charts/weft/Chart.yaml: version": chart["version"],
        "charts/weft/Chart.yaml: appVersion": chart["appVersion"],
    }


def check_tag(tag: str, root: Path) -> str:
    """Return the version that a Git tag such as ``v0.1.0`` releases.

    Raises:
        ReleaseError: the tag is not a version, a file declares another one, or the changelog has no section for it.
    """
    version = tag.removeprefix("v")
    if not tag.startswith("v") or SEMVER.fullmatch(version) is None:
        raise ReleaseError(f"tag {tag!r} is not a release: use v<major>.<minor>.<patch>, such as v0.1.0")
    differing = [f"{where} is {found}" for where, found in declared_versions(root).items() if found != version]
    if differing:
        raise ReleaseError(f"tag {tag} does not match the checkout: {'; '.join(differing)}")
    release_notes(version, root)
    return version


def release_notes(version: str, root: Path) -> str:
    """Return the changelog's section of a version, without its heading.

    Raises:
        ReleaseError: there is no such section, or it is empty.
    """
    text = (root / "CHANGELOG.md").read_text()
    heading = re.search(rf"^## \[?{re.escape(version)}\]?(?: .*)?$", text, re.MULTILINE)
    if heading is None:
        raise ReleaseError(f"CHANGELOG.md has no section '## {version}': rename '## Unreleased' and begin a new one")
    section = re.split(r"^## ", text[heading.end() :], maxsplit=1, flags=re.MULTILINE)[0].strip()
    if not section:
        raise ReleaseError(f"the section '## {version}' of CHANGELOG.md is empty: say what changed")
    return section + "\n"
