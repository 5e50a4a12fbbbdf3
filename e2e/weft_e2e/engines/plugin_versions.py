"""Try Weft's plug-in for vLLM in several versions of vLLM, one after the other: its contract, then real engines."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from weft_e2e.engines.environment import OLDER, VERSION_VARIABLE, VLLM_VERSION, EngineEnv, ensure, environment
from weft_e2e.images.catalogue import repository_root

CONTRACT_S, ENGINES_S = 120.0, 900.0
ENGINES = ("-m", "pytest", "-q", "-m", "engine_quick", "e2e/weft_e2e_tests/test_engine_rounds.py")


def try_plugin(versions: Sequence[str]) -> int:
    """Return 0 where the plug-in works in all these versions, by default in all that are pinned.

    What is made for others than the usual one is removed.

    Raises:
        EngineSetupError: a version is not pinned, or its engines cannot be set up.
    """
    results = {version: _works(version) for version in versions or (*OLDER, VLLM_VERSION)}
    for version, works in results.items():
        _say(f"vLLM {version}: {'the plug-in works' if works else 'FAILED, see above'}")
    return 0 if all(results.values()) else 1


def _works(version: str) -> bool:
    os.environ[VERSION_VARIABLE] = version  # for the tests' process, too
    was_there = environment().there
    env = ensure(_say)
    try:
        return _contract(env) and _engines()
    finally:
        if version != VLLM_VERSION and not was_there:
            shutil.rmtree(env.root)


def _contract(env: EngineEnv) -> bool:
    """Tell whether the plug-in finds in this vLLM what it relies on; what is missing is printed."""
    quiet = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "VLLM_PLUGINS": ""}
    argv = [str(env.python), "-m", "weft_vllm.contract"]
    return _succeeds(argv, quiet, CONTRACT_S)


def _engines() -> bool:
    """Tell whether real engines hand KV there and back."""
    env = {**os.environ, "WEFT_E2E_ENGINE": "1"}
    return _succeeds([sys.executable, *ENGINES], env, ENGINES_S)


def _succeeds(argv: Sequence[str], env: Mapping[str, str], limit_s: float) -> bool:
    try:
        done = subprocess.run(argv, env=env, cwd=repository_root(), timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        _say(f"`{' '.join(argv[-2:])}` did not end within {limit_s:g} s")
        return False
    return done.returncode == 0


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the command's own words
