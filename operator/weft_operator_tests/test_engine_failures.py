"""What is said of an engine that keeps ending, from the end of its log: as vLLM 0.32 wrote it."""

import pytest

from weft_operator.workers.engine_failures import failure_hint

NO_CONFIG = """
Please verify the following requirements:
1. Provide a valid Hugging Face repository ID.
2. Specify a local directory that contains a recognized configuration file.
   - For Hugging Face models: ensure the presence of a 'config.json'.
 [type=value_error, input_value=ArgsKwargs((), {'model': ...nderer_num_workers': 1}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
NO_SHM = """
(EngineCore pid=91) ERROR 11-22 23:07:55 [core.py:1510]     raise RuntimeError(
    raise RuntimeError(
RuntimeError: Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required, 64 MiB free. Increase \
/dev/shm (e.g. --shm-size or --ipc=host).
"""
NO_COMPILER = """
torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in \
torch._inductor.config.cpp.cxx: (None, 'g++')
"""
NO_PROOF = "WEFT_ENGINE_PROOF_FILE: /etc/weft-engine/engine-proof cannot be read (Permission denied)"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (NO_CONFIG, "no config.json; correct spec.model.source.pvc.path"),
        (NO_SHM, "it needs 160 MiB of /dev/shm; raise spec.engine.sharedMemory"),
        (NO_PROOF, "cannot read the proof"),
        (NO_COMPILER, "set TORCH_COMPILE_DISABLE=1"),
    ],
)
def test_a_known_end_is_reported_with_its_remedy(said: str, words: str) -> None:
    assert words in failure_hint(said)


def test_an_unknown_error_is_reported_as_the_engine_said_it() -> None:
    said = "KeyError: 'first'\nDuring handling:\nvllm.errors.EngineDeadError: " + "x" * 5000
    told = failure_hint(said)
    assert told.startswith("EngineDeadError: xxx")
    assert told.endswith("; see its log")
    assert len(told) < 300


def test_nothing_is_made_up() -> None:
    assert failure_hint("") == failure_hint("INFO: all is well\n") == ""
