"""The planner's bench and the papers' bench run, at a size that measures nothing."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = (
    "Goodput against AMPD", "KV of idle sessions", "PPD, Table 1", "Figure 7", "Table 2", "exhaustive search",
    "not reproduced",
)  # fmt: skip

pytestmark = pytest.mark.component


def run(*words: str, missing: bool = False) -> str:
    """Return what a bench prints; ``missing``: status 1 is allowed, for a busy machine misses aims."""
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=220, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == int(missing and "MISSED" in done.stdout), done.stderr
    return done.stdout


def test_the_papers_bench_writes_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    run("bench.paper", "--tiny", "--page", str(page))
    text = page.read_text(encoding="utf-8")
    assert [part for part in PARTS if part not in text] == []
    assert "nan" not in text.lower()
    assert (tmp_path / "plots" / "uplift.svg").read_text(encoding="utf-8").startswith("<svg")
    assert re.search(r"^\| 8 \| 0\.54 \| \d+\.\d+ \| \d+\.\d+ \| \d+\.\d+ \| P\dx\d D\dx\d \|$", text, re.MULTILINE)
    assert "above 10 % in" in text


def test_the_planners_bench_prints_every_figure_and_its_status_tells_misses() -> None:
    table = run("bench.planner", "--tiny", missing=True)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:2] == "| "]
    names = [row[0] for row in rows[2:]]
    assert names[3:] == ["plan, 8 GPUs", "integer program, 8 GPUs"]
    assert [name.split(",")[0] for name in names[:3]] == ["simulator"] * 3
    for _, median, spread, _, aim in rows[2:]:
        value = float(median.split()[0])
        least, most = map(float, spread.split(" to "))
        assert 0 < least <= value <= most < math.inf
        if aim != "-":
            sign, wanted, *missed = aim.split()
            assert bool(missed) == (value < float(wanted) if sign == ">=" else value > float(wanted))
