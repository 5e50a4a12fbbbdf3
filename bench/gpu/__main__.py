"""Time a model's operators on a GPU and hold rounds over one vLLM pair on it; write the figures beside this file.

    make gpu-check [BENCH_ARGS='--model Qwen/Qwen3-0.6B --vllm /path/to/vllm']
    make gpu-check BENCH_ARGS=--trial

Needs one NVIDIA GPU and a vLLM with NIXL for it. ``--trial`` runs the whole flow on CPU engines of `make engine-env` at
toy size, and writes nothing into the checkout. Exit status 0: all answers equal a plain engine's, and KV went both
ways; 1: not so; 2: there is no GPU, or no vLLM.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.gpu.engines import GpuEnv, catalogued, gpu_name, trio
from bench.gpu.rounds import Figures, hold
from bench.profile.engines import NoEnginesError, made, pair

RESULTS = Path(__file__).with_name("results.json")
ROOT = Path(__file__).parents[2]
OPERATORS_S = 900.0
NOTHING = 2
_PROFILE = "from weft_planner.cli.profile import profile; profile(prog_name='weft profile')"
_TOY = ["--histories", "0,64", "--increments", "16,64,128", "--batches", "1,2,4", "--contexts", "32,64", "--chunks", ""]


def main() -> int:
    """Check, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen/Qwen3-0.6B", help="a well-known model, on the hub")
    parser.add_argument("--weights", default="", help="its folder, where the hub is not to be asked")
    parser.add_argument("--gpu", default="", help="the GPU's name in the catalogue; default: as it names itself")
    parser.add_argument("--vllm", default=shutil.which("vllm") or "", help="the program; default: of the path")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--trial", action="store_true", help="CPU engines at toy size")
    given = parser.parse_args()
    name = "" if given.trial else gpu_name()
    if not given.trial and not name:
        print("gpu-check: there is no NVIDIA GPU here; nothing was checked (BENCH_ARGS=--trial: CPU engines)")
        return NOTHING
    if not given.trial and not given.vllm:
        print("gpu-check: there is no vllm on the path; give it by BENCH_ARGS='--vllm PATH'")
        return NOTHING
    given.gpu = given.gpu or catalogued(name)
    if not given.trial and not given.gpu:
        print(f"gpu-check: the catalogue has no {name}; name the nearest one by BENCH_ARGS='--gpu NAME'")
        return NOTHING
    began = time.monotonic()
    try:
        found = _trial(given.rounds) if given.trial else _on_gpu(given)
    except NoEnginesError as error:
        print(f"gpu-check: {error}")
        return NOTHING
    operators, figures = found
    report: dict[str, Any] = {
        "device": name or "CPU engines (trial)",
        "operators": operators,
        "rounds": figures.dump(),
        "wallSeconds": round(time.monotonic() - began),
    }
    text = json.dumps(report, indent=1)
    print(text)
    if not given.trial:
        RESULTS.write_text(text + "\n")
    return 0 if figures.right and operators["ok"] else 1


def _trial(rounds: int) -> tuple[dict[str, Any], Figures]:
    env = made()
    config = ["--model", "weft/tiny", "--config", str(env.model / "config.json"), "--gpu", "cpu", "--device", "cpu"]
    sizes = ["--kv-capacity", "20480", "--link-rate", "1e9", "--dtype", "float32", "--kv-dtype", "float32", *_TOY]
    operators = _operators(env.python, [*config, *sizes])
    with tempfile.TemporaryDirectory() as folder, pair(Path(folder), plain=True) as engines:
        # Its words are single characters: ids 0 to 95; answers of more than a block leave KV at the decode engine.
        return operators, hold(engines, tuple(range(96)), rounds=rounds, first=300, added=150, tokens=160)


def _on_gpu(given: argparse.Namespace) -> tuple[dict[str, Any], Figures]:
    with tempfile.TemporaryDirectory() as folder:
        env = GpuEnv(Path(folder), program=given.vllm, served=given.weights or given.model)
        operators = _operators(env.python, ["--model", given.model, "--gpu", given.gpu])
        with trio(env, Path(folder), context=8192) as engines:
            ids = tuple(range(1000, 9000))
            return operators, hold(engines, ids, rounds=given.rounds, first=2000, added=500, tokens=100)


def _operators(python: Path, words: list[str]) -> dict[str, Any]:
    """Run ``weft profile operators`` by an interpreter that has torch; vLLM's own does."""
    folders = ":".join(str(ROOT / part) for part in ("planner", "cli", "core"))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "operators.yaml"
        argv = [str(python), "-c", _PROFILE, "operators", *words, "-o", str(target)]
        done = subprocess.run(
            argv,
            env={**os.environ, "PYTHONPATH": folders},
            capture_output=True,
            text=True,
            timeout=OPERATORS_S,
            check=False,
        )
        took = round(time.monotonic() - began, 1)
        if done.returncode != 0:
            return {"ok": False, "seconds": took, "error": done.stderr[-500:]}
        return {"ok": True, "seconds": took, "table": done.stdout.splitlines(), "profile": target.read_text()}


if __name__ == "__main__":
    sys.exit(main())
