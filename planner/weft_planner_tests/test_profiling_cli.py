"""``weft profile``: what is printed and written, what is refused, and what an interrupted run leaves."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from weft_cli.running import run
from weft_core.profile_json import profile_from_json
from weft_mock_tests.engines import MODEL
from weft_mock_tests.test_mock_process import engine
from weft_operator.commands.manifest_checks import profile_messages
from weft_planner.cli.profile import profile as command
from weft_planner.profiling.files import read_measurements, write_measurements
from weft_planner_tests.profiled import grid, measured, profile

TABLE = measured(profile(degrees=(2,)), grid((2,)), noise=0.02)
GRID = ["--histories", "0,64", "--increments", "16,64,128", "--batches", "1,2", "--contexts", "32,64", "--chunks", ""]
FACTS = ["--gpu", "nvidia-h100", "--link-rate", "50e9", "--noise", "3"]


def weft(*arguments: str) -> int:
    return run(command, arguments, prog="weft profile")


def test_a_table_is_fitted_into_a_manifest_that_can_be_applied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_measurements(TABLE, tmp_path / "m.json")
    target = tmp_path / "profile.yaml"
    assert weft("fit", str(tmp_path / "m.json"), "-o", str(target)) == 0
    out = capsys.readouterr().out
    assert "test/model on test-gpu, test-engine" in out
    assert "prefill TP2" in out
    assert "median error" in out
    body = yaml.safe_load(target.read_text())
    assert profile_messages(body) == []
    assert body["metadata"]["name"] == "model-test-gpu"
    fitted = profile_from_json(body["spec"])
    assert fitted.degrees[2].prefill_fit is not None


def test_csv_rows_of_a_known_model_need_no_more_than_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_measurements(TABLE, tmp_path / "m.csv")
    given = ["--model", "my/model", "--gpu", "my-gpu", "--engine", "mine"]
    assert weft("fit", str(tmp_path / "m.csv"), *given) == 2
    assert "kvBytesPerToken: not known; name a known model" in capsys.readouterr().err
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
                "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
            }
        )
    )  # fmt: skip
    given[3] = "nvidia-h100"
    assert weft("fit", str(tmp_path / "m.csv"), *given, "--config", str(config)) == 0
    assert "my/model on nvidia-h100, mine" in capsys.readouterr().out


def test_sizes_that_nobody_knows_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    write_measurements(TABLE, tmp_path / "m.csv")
    given = ["--model", "my", "--gpu", "cpu", "--engine", "e", "--config", str(tmp_path / "config.json")]
    target = tmp_path / "p.yaml"
    assert weft("fit", str(tmp_path / "m.csv"), *given) == 2
    assert "KV capacity of degree 2 are not known" in capsys.readouterr().err
    assert weft("fit", str(tmp_path / "m.csv"), *given, "--kv-capacity", "2=5000", "-o", str(target)) == 0
    spec = yaml.safe_load(target.read_text())["spec"]
    assert spec["degrees"][0]["kvCapacityTokens"] == 5000
    assert spec["kvBytesPerToken"] == 2 * 2 * 2 * 16 * 2
    assert weft("fit", str(tmp_path / "m.csv"), *given, "--kv-capacity", "lots") == 2
    assert "--kv-capacity lots: write tokens, or DEGREE=TOKENS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "arguments", "named"),
    [
        ("function,degree\nstep,x\n", (), "t.csv: line 2, degree: 'x' is not a whole number"),
        ("a\n1\n", ("--column", "seconds=a"), "--column: function has neither a column nor a value"),
        ("isl\n1\n", ("--passes",), "t.csv: tp: there is no such column; it has isl"),
    ],
)
def test_a_bad_table_is_refused_by_line_and_field(
    text: str, arguments: tuple[str, ...], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text(text)
    assert weft("fit", str(tmp_path / "t.csv"), *arguments) == 2
    assert named in capsys.readouterr().err


def test_files_of_two_models_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dataclasses import replace

    write_measurements(TABLE, tmp_path / "a.json")
    write_measurements(replace(TABLE, about=replace(TABLE.about, model="another")), tmp_path / "b.json")
    assert weft("fit", str(tmp_path / "a.json"), str(tmp_path / "b.json")) == 2
    assert "model: one file is of 'test/model', another of 'another'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["operators", "--model", "unheard-of"], "'unheard-of' is not well known; give its config.json"),
        (["operators", "--model", "Qwen/Qwen3-8B", "--degree", "3"], "heads do not split over 3 GPUs"),
        (["operators", "--model", "Qwen/Qwen3-8B", "--degree", "2"], "--gpu: '' is not in the catalogue"),
        (["engine", "http://127.0.0.1:9", "--batches", "1,x"], "'1,x' is no list of whole numbers"),
        (["engine", "http://127.0.0.1:9", "--batches", ""], "--batches: at least one length is needed"),
        (["engine", "http://127.0.0.1:9", "--budget", "soon"], "'soon' is not a duration"),
        (["engine", "http://127.0.0.1:9", "--api-key-env", "NO_SUCH_KEY"], "the environment has no NO_SUCH_KEY"),
        (["engine", "http://127.0.0.1:9", "-m", "rows.txt"], "measurements are kept as .json or .csv"),
        (["engine", "http://127.0.0.1:9"], "is it up and reachable?"),
    ],
)
def test_a_command_line_that_cannot_work_is_refused(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert weft(*arguments) in (1, 2)
    assert named in capsys.readouterr().err


def test_operator_tables_are_composed_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"bfloat16,{m},{n},{k},{m * n * k / 3e11 + 0.01}" for m in (1, 8, 64, 512, 4096, 16384) for n, k in SHAPES]
    (tmp_path / "gemm_perf.csv").write_text("\n".join(["gemm_dtype,m,n,k,latency", *rows]))
    given = ["--model", "Qwen/Qwen3-8B", "--gpu", "nvidia-h100", "--aiconfigurator", str(tmp_path)]
    lengths = ["--histories", "0,1024", "--increments", "64,512,2048", "--batches", "1,16", "--contexts", "256,2048"]
    target = tmp_path / "p.yaml"
    assert weft("operators", *given, *lengths, "-o", str(target)) == 0, capsys.readouterr().err
    assert "aiconfigurator, 24 operator times" in capsys.readouterr().out
    assert profile_messages(yaml.safe_load(target.read_text())) == []


def test_silicon_tables_that_are_not_installed_name_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk.engine", None)
    assert weft("silicon", "--model", "Qwen/Qwen3-8B", "--gpu", "nvidia-h100") == 1
    assert "aiconfigurator-core is not installed: pip install 'weft[silicon]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--model", "Qwen/Qwen3-8B", "--gpu", "amd-mi300x"), "there are no tables of amd-mi300x; use one of nvidia-"),
        (("--model", "Qwen/Qwen3-8B"), "gpu: give --gpu; use one of nvidia-"),
        (("--model", "my/own", "--gpu", "nvidia-h100"), "it is unknown; give its config.json by --config"),
    ],
)
def test_silicon_tables_of_nothing_known_are_refused(
    arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert weft("silicon", *arguments) == 1
    assert named in capsys.readouterr().err


SHAPES = ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288))
"""Outer and inner width of Qwen3-8B's products."""


@pytest.mark.component
@pytest.mark.alone
def test_an_interrupted_run_is_resumed_and_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, target = tmp_path / "m.json", tmp_path / "p.yaml"
    with engine(tmp_path, "--time-scale", "5") as (port, _):
        url = f"http://127.0.0.1:{port}"
        slow = [*GRID, "--steps", "4", "--repeats", "100"]
        started = subprocess.Popen(
            [sys.executable, "-c", START, "engine", url, *slow, "-m", str(store)], stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 60
        while not store.exists() or len(read_measurements(store).rows) < 3:
            assert started.poll() is None, started.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=30)
        assert started.returncode == 130, err
        before = read_measurements(store)
        assert f"{len(before.rows)} timings are in {store}; continue with --resume {store}" in err
        assert weft("engine", url, *GRID, "-m", str(store)) == 2
        assert "exists; continue it with --resume" in capsys.readouterr().err
        done = ["--steps", "4", "--repeats", "1", "--noise", "5", "-o", str(target), *FACTS]
        # The mock's model is in no catalogue: what follows from its dimensions is given by a config.
        config = tmp_path / "config.json"
        config.write_text(json.dumps(TINY))
        assert weft("engine", url, *GRID, *done, "--resume", str(store), "--config", str(config)) == 0
    after = read_measurements(store)
    assert after.rows[: len(before.rows)] == before.rows
    assert not after.missing()
    assert after.about.model == MODEL
    assert after.about.memory[1].kv_capacity_tokens == 4096
    assert after.about.engine == "vllm 0.32.0"
    assert profile_messages(yaml.safe_load(target.read_text())) == []
    assert f"{MODEL} on nvidia-h100" in capsys.readouterr().out


START = (
    "import sys; from weft_cli.running import run; from weft_planner.cli.profile import profile; "
    "sys.exit(run(profile, prog='weft profile'))"
)
TINY = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000,
}  # fmt: skip
