"""Real engines that cannot start: what the operator makes of their last words names the field to mend."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from weft_e2e.engines.command import HOST, Command, command, tiny_service
from weft_e2e.engines.environment import environment
from weft_e2e.engines.process import EngineProcess
from weft_e2e.local.ports import free_ports
from weft_e2e.waiting import until
from weft_operator.api.service import DisaggInferenceService
from weft_operator.workers.engine_failures import failure_hint

pytestmark = [
    pytest.mark.component,
    pytest.mark.engine,
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_ENGINE"), reason="real engines: make e2e-engine"),
]

KEPT_BYTES = 2048
"""Of a container that ended the kubelet keeps so much of the log."""


def no_model(found: Command, folder: Path) -> Command:
    return _model(found, folder / "none")


def no_config(found: Command, folder: Path) -> Command:
    (folder / "empty").mkdir()
    return _model(found, folder / "empty")


def no_proof(found: Command, folder: Path) -> Command:
    return dataclasses.replace(found, env=found.env | {"WEFT_ENGINE_PROOF_FILE": str(folder / "none")})


def _model(found: Command, folder: Path) -> Command:
    program, verb, _, *args = found.argv
    return dataclasses.replace(found, argv=(program, verb, str(folder), *args))


@pytest.mark.parametrize(
    ("breaks", "told"),
    [
        (no_model, "there is no model at {folder}/none; correct spec.model.source.pvc.path"),
        (no_config, "the model's folder has no config.json; correct spec.model.source.pvc.path"),
        (no_proof, "its plug-in cannot read the proof; remove the patches of spec.podTemplates"),
    ],
)
def test_an_engine_that_cannot_start_is_told_with_the_field_to_mend(
    breaks: Callable[[Command, Path], Command], told: str, tmp_path: Path
) -> None:
    spec = DisaggInferenceService.model_validate(tiny_service()).spec
    port, side = free_ports(2)
    asked = command(spec, environment(), "prefill", port=port, side_port=side, core=0, home=tmp_path)
    engine = EngineProcess("broken", f"http://{HOST}:{port}", breaks(asked, tmp_path), tmp_path / "log")
    try:
        until(lambda: not engine.alive, what="an engine that ends", timeout_s=120, last=engine.last_words)
    finally:
        engine.kill()
    words = (tmp_path / "log").read_bytes()[-KEPT_BYTES:].decode(errors="replace")
    assert told.format(folder=tmp_path) in failure_hint(words), words
