"""The options of the vLLM that is installed are those that managed flags are judged by: a newer one brings others."""

import os
import subprocess
from pathlib import Path

import pytest

from weft_e2e.engines.environment import environment
from weft_e2e.images.catalogue import repository_root

pytestmark = [
    pytest.mark.component,
    pytest.mark.engine,
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_ENGINE"), reason="real engines: make e2e-engine"),
]

GOLDEN = repository_root() / "operator/weft_operator_tests/golden/vllm_flags.txt"
_OPTIONS = """
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

for action in make_arg_parser(FlexibleArgumentParser())._actions:
    if action.option_strings:
        print("option", *action.option_strings, *(["*"] if action.nargs == 0 else []))
"""


def test_the_options_are_those_of_the_list(tmp_path: Path) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "VLLM_CACHE_ROOT": str(tmp_path),
        "VLLM_TARGET_DEVICE": "cpu",
    }
    argv = [str(environment().python), "-c", _OPTIONS]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=True)
    found = {line.removeprefix("option ") for line in done.stdout.splitlines() if line.startswith("option ")}
    listed = {line for line in GOLDEN.read_text(encoding="utf-8").splitlines() if not line.startswith("#")}
    assert found == listed, "take over what is new, and decide which of it the operator manages (api/engine_flags.py)"
