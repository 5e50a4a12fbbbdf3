"""A release's tag, versions and notes agree, or the error says which file to change."""

from pathlib import Path

import pytest

from weft_e2e.images.catalogue import repository_root
from weft_e2e.release import ReleaseError, check_tag, release_notes
from weft_e2e.release.versions import declared_versions

CHANGELOG = """\
# Changelog

## Unreleased

- Later.

## 1.2.3 (2026-11-27)

### Added

- A thing.

## 1.2.2

- Old.
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "charts/weft").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "weft"\nversion = "1.2.3"\n')
    (tmp_path / "charts/weft/Chart.yaml").write_text('version: 1.2.3\nappVersion: "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    return tmp_path


def test_the_checkout_declares_one_version() -> None:
    assert len(set(declared_versions(repository_root()).values())) == 1


def test_a_tag_that_matches_gives_its_version_and_notes(checkout: Path) -> None:
    assert check_tag("v1.2.3", checkout) == "1.2.3"
    assert release_notes("1.2.3", checkout) == "### Added\n\n- A thing.\n"


@pytest.mark.parametrize("tag", ["1.2.3", "v1.2", "release", "v1.2.3;id"])
def test_a_tag_that_is_no_version_is_refused(checkout: Path, tag: str) -> None:
    with pytest.raises(ReleaseError, match=r"use v<major>\.<minor>\.<patch>"):
        check_tag(tag, checkout)


def test_another_version_in_a_file_is_named(checkout: Path) -> None:
    (checkout / "charts/weft/Chart.yaml").write_text('version: 1.2.3\nappVersion: "1.2.2"\n')
    with pytest.raises(ReleaseError, match=r"Chart\.yaml: appVersion is 1\.2\.2"):
        check_tag("v1.2.3", checkout)


@pytest.mark.parametrize("text", ["# Changelog\n", "## 1.2.3\n\n## 1.2.2\n\n- Old.\n", "## 1.2.34\n\n- Other.\n"])
def test_a_version_without_notes_is_refused(checkout: Path, text: str) -> None:
    (checkout / "CHANGELOG.md").write_text(text)
    with pytest.raises(ReleaseError, match=r"CHANGELOG\.md"):
        check_tag("v1.2.3", checkout)
