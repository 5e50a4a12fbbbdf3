"""Check on a machine with a GPU what everything else shows without one, in steps of less than four minutes.

    make gpu-check [BENCH_ARGS='operators forward compare silicon rounds']
    make gpu-check BENCH_ARGS=--trial
    PYTHONPATH=.:core:planner python3 -m bench.gpu operators forward --out DIR

operators: time the operators of Llama-3.1-8B. forward: time whole passes of it with random weights. compare: fit a cost
profile to the operators and predict the passes; no GPU. silicon: predict them from aiconfigurator-core's tables, where
that is installed; no GPU. rounds: KV both ways over one pair of a vLLM with NIXL. The first two need torch and numpy.
Each step writes one file into DIR (bench/gpu). ``--trial`` runs toys on the CPU, with the engines of `make engine-env`,
and writes nothing into the checkout. Exit status: 0 right; 1 not; 2 a step had not what it needs.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.gpu import comparison, silicon
from bench.gpu.card import catalogued, gpu_name
from bench.gpu.record import read, say
from bench.gpu.setting import Setting, on_gpu, toy

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
STEPS = ("operators", "forward", "compare", "silicon", "rounds")
WITH_TORCH = ("operators", "forward")
NOTHING = 2


def main() -> int:
    """Take the steps in their order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", help=f"of {', '.join(STEPS)}; default: all")
    parser.add_argument("--out", type=Path, help="folder for results; default: bench/gpu, a trial's is thrown away")
    parser.add_argument("--seconds", type=float, default=200.0, help="limit per step; later points are skipped")
    parser.add_argument("--gpu", default="", help="the GPU's name in the catalogue; default: as it names itself")
    parser.add_argument("--model", default="Qwen/Qwen3-0.6B", help="rounds: a model on the hub, or its folder")
    parser.add_argument("--vllm", default=shutil.which("vllm") or "", help="rounds: the program; default: of the path")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--trial", action="store_true", help="toys on the CPU")
    given = parser.parse_args()
    if unknown := [step for step in given.steps if step not in STEPS]:
        parser.error(f"{', '.join(unknown)}: no such step; choose of {', '.join(STEPS)}")
    steps = [step for step in STEPS if step in (given.steps or STEPS)]
    name = "" if given.trial else gpu_name()
    if not given.trial and not name and {*steps} & {*WITH_TORCH, "rounds"}:
        say("gpu-check: there is no NVIDIA GPU here; nothing was checked (--trial: toys on the CPU)")
        return NOTHING
    gpu = given.gpu or catalogued(name) or _recorded(given.out or HERE)
    if not given.trial and not gpu:
        say(f"gpu-check: the catalogue has no {name or 'GPU without a name'}; name the nearest one by --gpu NAME")
        return NOTHING
    setting = toy() if given.trial else on_gpu(gpu)
    with tempfile.TemporaryDirectory() as folder:
        out = given.out or (Path(folder) if given.trial else HERE)
        outcomes = [_take(step, setting, out, given) for step in steps]
    for step, outcome in zip(steps, outcomes, strict=True):
        say(f"gpu-check: {step}: {'not run' if outcome is None else 'right' if outcome else 'not right'}")
    if False in outcomes:
        return 1
    # A trial has no card, so that no tables are of it.
    needed = [outcome for step, outcome in zip(steps, outcomes, strict=True) if not (given.trial and step == "silicon")]
    return NOTHING if None in needed else 0


def _recorded(out: Path) -> str:
    found = read(out / comparison.PASSES)
    return str(found["gpu"]) if found else ""


def _take(step: str, setting: Setting, out: Path, given: argparse.Namespace) -> bool | None:
    if step in WITH_TORCH and importlib.util.find_spec("torch") is None:
        return _elsewhere(step, out, given)
    if step == "operators":
        from bench.gpu import operators

        return operators.run(setting, out, seconds=given.seconds)
    if step == "forward":
        from bench.gpu import forward

        return forward.run(setting, out, seconds=given.seconds)
    if step == "compare":
        met = comparison.run(setting, out)
        # On a CPU that others use times agree by chance alone: a trial shows that everything runs.
        return met is not None if given.trial else met
    if step == "silicon":
        return silicon.run(out)
    from bench.gpu import pair

    return pair.run(out, rounds=given.rounds, model=given.model, vllm=given.vllm, trial=given.trial)


def _elsewhere(step: str, out: Path, given: argparse.Namespace) -> bool | None:
    """Take a step by an interpreter that has torch: that of the vLLM, or of `make engine-env`."""
    from bench.profile.engines import NoEnginesError, made

    try:
        python = made().python if given.trial else Path(given.vllm).parent / "python"
    except NoEnginesError as error:
        say(f"{step}: {error}")
        return None
    if not given.trial and not given.vllm:
        say(f"{step}: {sys.executable} has no torch; use an interpreter that has, or give a vLLM by --vllm PATH")
        return None
    words = [str(python), "-m", "bench.gpu", step, "--out", str(out), "--seconds", str(given.seconds)]
    words += ["--trial"] if given.trial else ["--gpu", given.gpu]
    folders = ":".join(str(part) for part in (ROOT, ROOT / "core", ROOT / "planner"))
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "PYTHONPATH": folders}, timeout=given.seconds + 300, check=False
    )
    return {0: True, NOTHING: None}.get(done.returncode, False)


if __name__ == "__main__":
    sys.exit(main())
