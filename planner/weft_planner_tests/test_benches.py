"""The planner's bench and the papers' bench run, at a size that measures nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("Goodput against AMPD", "PPD, Table 1", "Figure 7", "Table 2", "exhaustive search", "not reproduced")

pytestmark = [pytest.mark.component, pytest.mark.timeout(240)]


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=220, check=False
    )
    assert done.returncode in (0, 1), done.stderr  # 1: a busy machine misses an aim
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_the_papers_bench_writes_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    run("bench.paper", "--tiny", "--page", str(page))
    text = page.read_text(encoding="utf-8")
    assert [part for part in PARTS if part not in text] == []
    assert "nan" not in text.lower()
    assert (tmp_path / "plots" / "uplift.svg").read_text(encoding="utf-8").startswith("<svg")


def test_the_planners_bench_prints_its_table() -> None:
    table = run("bench.planner", "--tiny")
    assert "| simulator, Llama-3.1-70B gaia" in table
    assert "| plan, 8 GPUs |" in table
    assert "| integer program, 8 GPUs |" in table
