"""The parts of `make gpu-check` that need neither a GPU nor torch."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench.gpu import comparison, operators, silicon
from bench.gpu.record import Budget, Record, read, spread
from bench.gpu.setting import LLAMA, Setting, on_gpu, tokens_of, toy

from weft_core.gpus import GPUS
from weft_planner.profiling.measurements import GridCell
from weft_planner.profiling.operator_tables import RooflineTimer
from weft_planner.profiling.operators import compose, pass_of

ROOT = Path(__file__).parents[2]
H100 = on_gpu("nvidia-h100")
PREFILL = GridCell("prefill", 1, history=2048, increment=512)
DECODE = GridCell("step", 1, batch=4, context=4096)
MIXED = GridCell("step", 1, history=64, batch=4, context=4096, chunk=128)


def written(folder: Path, setting: Setting, *, slower: float = 1.0) -> None:
    """Write the records of a GPU that keeps to its roofline, on which whole passes take ``slower`` times as long."""
    timer = RooflineTimer(GPUS["nvidia-h100"])
    named = [op for cell in (*setting.fitted, *setting.predicted) for op in pass_of(setting.model, cell)]
    times = [operators.named(op) | {"us": timer.seconds(op) * 1e6} for op in dict.fromkeys(named)]
    Record(folder / operators.NAME, {"gpu": setting.gpu, "times": times}).save()
    passes = compose(setting.model, setting.predicted, timer, overheads=operators.NO_OVERHEADS).rows
    rows = [operators.named(row.cell) | {"seconds": slower * row.seconds} for row in passes]
    body = {"gpu": setting.gpu, "card": {"name": "H100"}, "software": {"torch": "2.11"}, "rows": rows}
    Record(folder / comparison.PASSES, body).save()


def test_a_profile_fitted_to_operators_predicts_passes_composed_of_them(tmp_path: Path) -> None:
    written(tmp_path, H100)
    assert comparison.run(H100, tmp_path) is True
    found = read(tmp_path / comparison.NAME)
    assert found is not None
    assert found["card"] == {"name": "H100"}
    assert set(found["profile"]) == {"prefill", "decode", "mixed"}
    assert all(kind["median"] < 0.03 for kind in found["profile"].values())
    assert all(kind["p95"] < 1e-12 for kind in found["operators"].values())
    assert len(found["profilePoints"]) == len(H100.predicted)
    applied = json.loads((tmp_path / operators.PROFILE).read_text())
    assert (applied["kind"], applied["spec"]["model"]) == ("CostProfile", LLAMA.name)


def test_passes_that_take_longer_than_predicted_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, H100, slower=1.25)
    assert comparison.run(H100, tmp_path) is False
    assert "profile: decode: 60 passes, median 20" in capsys.readouterr().out


def test_without_records_nothing_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert comparison.run(H100, tmp_path) is None
    assert silicon.run(tmp_path) is None
    assert not list(tmp_path.iterdir())
    assert "run that step first" in capsys.readouterr().out


def test_records_of_two_cards_are_not_compared(tmp_path: Path) -> None:
    written(tmp_path, H100)
    passes = read(tmp_path / comparison.PASSES)
    assert passes is not None
    Record(tmp_path / comparison.PASSES, passes | {"gpu": "nvidia-h200"}).save()
    assert comparison.run(H100, tmp_path) is None


def test_errors_are_by_kind_and_aims_by_both_figures() -> None:
    right = [
        comparison.Point(PREFILL, 1.0, 1.01),
        comparison.Point(DECODE, 2.0, 1.9),
        comparison.Point(MIXED, 1.0, 1.3),
    ]
    rows = {row.kind: row for row in comparison.agreements(right)}
    assert rows["prefill"].met
    assert rows["decode"].bias == pytest.approx(-0.05)
    assert not rows["mixed"].met
    assert not replace(rows["prefill"], p95=0.13).met
    assert "step, batch 4, context 4096 | 2000.000 | 1900.000 | -5.0%" in comparison.table("profile", right)


def test_tables_predict_prefills_and_decode_steps_only() -> None:
    class Handle:
        def predict_prefill_latency(self, batch: int, tokens: int, prefix: int) -> float:
            return batch * tokens + prefix / 1e4

        def predict_decode_latency(self, batch: int, tokens: int, _answers: int) -> float:
            return batch + tokens / 1e4

    predict = silicon.prediction(Handle())
    assert predict(PREFILL) == pytest.approx(2560.2048e-3)
    assert predict(DECODE) == pytest.approx(4.1023e-3)
    assert predict(MIXED) is None


def test_shapes_fit_the_cache_and_half_of_them_are_in_no_grid() -> None:
    for setting in (H100, toy()):
        assert max(tokens_of(cell) for cell in (*setting.fitted, *setting.predicted)) <= setting.kv_tokens
        assert {comparison.Point(cell, 1, 1).kind for cell in setting.predicted} == set(comparison.KINDS)
    unseen = set(H100.predicted) - set(H100.fitted)
    assert len(unseen) > len(H100.predicted) / 2


def test_a_record_is_whole_after_every_point(tmp_path: Path) -> None:
    rows: list[dict[str, int]] = []
    record = Record(tmp_path / "deep" / "step.json", {"step": "forward", "rows": rows})
    for number in range(3):
        rows.append({"number": number})
        record.save()
        assert read(tmp_path / "deep" / "step.json") == {"step": "forward", "rows": rows}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["step.json"]


def test_a_step_that_is_cut_short_has_some_of_everything() -> None:
    assert spread(list(range(7)), 3) == [0, 3, 6, 1, 4, 2, 5]
    assert Budget(0.0).over
    assert not Budget(1000.0).over


def test_an_unknown_step_is_refused_and_a_comparison_needs_no_gpu(tmp_path: Path) -> None:
    def told(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "bench.gpu", *words, "--out", str(tmp_path)]
        env = {"PATH": "", "PYTHONPATH": ":".join(str(ROOT / part) for part in ("core", "planner"))}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    code, text = told("opertors")
    assert code == 2
    assert "opertors: no such step; choose of operators, forward, compare, silicon, rounds" in text
    written(tmp_path, H100)
    code, text = told("compare")
    assert code == 0, text
    assert "gpu-check: compare: right" in text
