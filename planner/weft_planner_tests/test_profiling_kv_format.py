"""Which numbers an engine keeps its KV in, by what it says, what its transfers weigh, and what its user says."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from weft_cli.running import run
from weft_core.memory import kv_layout
from weft_core.models import MODELS
from weft_planner.cli.profile import profile as command
from weft_planner.profiling.files import write_measurements
from weft_planner.profiling.kv_format import cache_dtype, moved_bytes, weighed, with_format
from weft_planner.profiling.measurements import MeasurementError
from weft_planner_tests.profiled import grid, measured, profile

MODEL = MODELS["meta-llama/Llama-3.1-8B-Instruct"]
PAGE = """vllm:cache_config_info{block_size="128",cache_dtype="%s",num_gpu_blocks="160"} 1.0
vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 1.048576e+06
vllm:nixl_bytes_transferred_count{engine="0",model_name="m"} 2.0
"""


@pytest.mark.parametrize(
    ("told", "found"), [("fp8_e4m3", "fp8_e4m3"), ("auto", ""), ("torch.float32", "float32"), ("new", "")]
)
def test_an_engine_names_its_format_or_follows_its_model(told: str, found: str) -> None:
    assert cache_dtype(PAGE % told) == found


def test_bytes_on_their_way_are_counted() -> None:
    assert moved_bytes(PAGE) == 1048576.0
    assert moved_bytes("up 1\n") is None
    assert cache_dtype("up 1\n") == ""


@pytest.mark.parametrize(("name", "size"), [("float32", 4), ("bfloat16", 2), ("fp8", 1)])
def test_a_format_is_known_by_what_a_token_weighs(name: str, size: int) -> None:
    kept = kv_layout(with_format(MODEL, name)).per_token
    assert kept == kv_layout(MODEL).per_token * size // 2
    found = weighed(kept * 1.1, replace(MODEL, kv_dtype_bytes=3))
    assert with_format(MODEL, found).kv_dtype_bytes == size


def test_odd_weights_tell_no_format_and_odd_names_are_refused() -> None:
    assert weighed(kv_layout(MODEL).per_token * 1.5, MODEL) == ""
    assert with_format(MODEL, "auto") == with_format(MODEL, "") == MODEL
    with pytest.raises(MeasurementError, match="'int3' is no format; use float32"):
        with_format(MODEL, "int3")


def _written(folder: Path, notes: dict[str, str], *words: str) -> dict[str, object]:
    table = measured(profile(degrees=(2,)), grid((2,)), noise=0.02)
    about = replace(table.about, model=MODEL.name, gpu="my-gpu", kv_bytes_per_token=0, notes=notes)
    write_measurements(replace(table, about=about), folder / "m.json")
    target = folder / "p.yaml"
    given = ["fit", str(folder / "m.json"), "--kv-capacity", "5000", "-o", str(target)]
    assert run(command, [*given, *words], prog="weft profile") == 0
    found: dict[str, object] = yaml.safe_load(target.read_text())["spec"]
    return found


@pytest.mark.parametrize(
    ("notes", "words", "size", "told"),
    [
        ({}, (), 2, None),
        ({"kvFormat": "fp8"}, (), 1, "fp8"),
        ({"kvFormat": "fp8"}, ("--kv-dtype", "float32"), 4, "float32"),
        ({"kvFormat": "fp8"}, ("--kv-dtype", "auto"), 2, "fp8"),
        ({"kvBytesMoved": "263000 a token, by the reading engine"}, (), 4, "float32"),
    ],
)
def test_the_profile_counts_kv_by_the_format_that_is_kept(
    notes: dict[str, str], words: tuple[str, ...], size: int, told: str | None, tmp_path: Path
) -> None:
    spec = _written(tmp_path, notes, *words)
    layout = kv_layout(MODEL)
    assert spec["kvBytesPerToken"] == layout.per_token * size // 2
    provenance = spec["provenance"]
    assert isinstance(provenance, dict)
    assert provenance.get("kvFormat") == told
