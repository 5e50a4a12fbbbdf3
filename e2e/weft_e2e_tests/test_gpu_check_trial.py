"""`make gpu-check` at toy size on the CPU, by the interpreter of the engines, which has torch and transformers."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from bench.gpu.comparison import KINDS
from bench.gpu.record import read
from bench.gpu.setting import toy

from weft_e2e.engines.environment import environment
from weft_planner.profiling.operators import pass_of

pytestmark = [
    pytest.mark.component,
    pytest.mark.engine,
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_ENGINE"), reason="real engines: make e2e-engine"),
]
ROOT = Path(__file__).parents[2]
FOLDERS = ":".join(str(ROOT / part) for part in ("", "core", "planner"))


def told(*words: str, **variables: str) -> str:
    done = subprocess.run(
        [str(environment().python), "-m", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": FOLDERS, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.engine_quick
def test_whole_passes_are_those_of_a_true_llama() -> None:
    found = json.loads(told("bench.gpu.llama_check", TRITON_INTERPRET="1").splitlines()[-1])
    for name in ("llama", "llamaByTriton"):
        assert set(found[name]) == {"prefill", "history", "mixed"}
        assert max(found[name].values()) < 1e-4
    assert len(found["kernels"]) == 6
    assert max(found["kernels"]) < 1e-5


def test_a_trial_times_operators_and_passes_and_compares_them(tmp_path: Path) -> None:
    text = told("bench.gpu", "operators", "forward", "compare", "--trial", "--out", str(tmp_path))
    assert "gpu-check: compare: right" in text
    setting = toy()
    operators, passes, compared = (read(tmp_path / f"{name}.json") for name in ("operators", "forward", "comparison"))
    assert operators is not None
    assert passes is not None
    assert compared is not None
    needed = {op for cell in (*setting.fitted, *setting.predicted) for op in pass_of(setting.model, cell)}
    assert (len(operators["times"]), operators["failed"]) == (len(needed), [])
    assert (len(passes["rows"]), passes["failed"]) == (len(setting.predicted), [])
    assert set(compared["profile"]) == set(KINDS)
    assert operators["software"]["torch"]
