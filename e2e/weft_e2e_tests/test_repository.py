"""Guard the repository's layout: the operator/ trap, the pins, the wheel's content and the Makefile's help."""

import operator
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"weft_core", "weft_cli", "weft_planner", "weft_router", "weft_operator", "weft_e2e", "weft_mock"}


def test_the_operator_folder_never_shadows_the_standard_library() -> None:
    assert operator.__file__ is not None
    assert Path(operator.__file__).is_relative_to(sysconfig.get_path("stdlib"))
    own_files = [
        path.name for path in (ROOT / "operator").iterdir() if path.is_file() and path.suffix in {".py", ".pyi"}
    ]
    assert own_files == [], (
        "a Python file directly in operator/ shadows the operator module: move it into weft_operator"
    )


def test_a_process_started_in_the_root_still_finds_the_standard_operator() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import operator; print(operator.itemgetter(0)([7]))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=15,
        check=True,
    )
    assert found.stdout.strip() == "7"


@pytest.mark.parametrize("extra", ["build", "compile", "planner", "router", "operator", "e2e", "dev", "docs", "engine"])
def test_requirements_are_pinned_by_hash_and_name_no_index(extra: str) -> None:
    text = (ROOT / "requirements" / f"{extra}.txt").read_text()
    assert "://" not in text
    assert "--index" not in text
    for block in re.split(r"\n(?=\S)", text.strip()):
        assert re.match(r"[A-Za-z0-9._-]+==[^ ]+", block), block
        assert "--hash=sha256:" in block, block


def test_the_wheel_holds_exactly_the_packages(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("weft-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == PACKAGES
    for package in PACKAGES:
        assert f"{package}/py.typed" in names


def test_every_make_target_has_a_line_of_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^\.PHONY: (\S+)$", makefile, re.MULTILINE))
    helped = set(re.findall(r"^([a-z0-9-]+):.*## \S", makefile, re.MULTILINE))
    assert targets == helped


def test_ci_runs_what_the_readme_tells_to_run() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert re.search(r"^exec make test$", ci, re.MULTILINE)
    assert re.search(r"^make test\b", (ROOT / "README.md").read_text(), re.MULTILINE)


def test_no_link_in_the_documentation_is_dead() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "e2e").rglob("*.md")]
    assert len(pages) > 10
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert dead == []


def test_every_link_to_a_part_of_a_page_finds_its_heading() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "e2e").rglob("*.md")]
    parts = {page.resolve(): _anchors(page.read_text()) for page in pages}
    assert any(parts.values())
    dead = [
        f"{page.relative_to(ROOT)}: {target}#{part}"
        for page in pages
        for target, part in re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", page.read_text())
        if part not in parts.get((page.parent / target).resolve() if target else page.resolve(), {part})
    ]
    assert dead == []


def test_the_readme_leads_to_an_index_of_every_page() -> None:
    assert "](docs/index.md)" in (ROOT / "README.md").read_text()
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    pages = {page for page in pages if not page.startswith("decisions/")} - {"index.md"}
    led = set(re.findall(r"\]\(([^)#:]+\.md)", (ROOT / "docs/index.md").read_text()))
    assert pages - led == set()


def _anchors(text: str) -> set[str]:
    """Return the names of a page's headings as links write them."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ +(.+)$", plain, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def test_the_figures_of_the_readme_are_those_of_the_page_of_figures() -> None:
    claims = (ROOT / "README.md").read_text().split("**Why Weft**")[1].split("## ")[0]
    figures = (ROOT / "docs/figures.md").read_text()
    numbers = re.findall(r"\d+(?:[.,]\d+)+|\d+(?= (?:ms|requests|models|streams))", claims)
    assert len(numbers) >= 8
    assert [number for number in numbers if not re.search(rf"(?<![\d.,]){re.escape(number)}", figures)] == []
