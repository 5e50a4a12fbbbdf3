"""A coordinator under hostile requests for some seconds; `make fuzz FUZZ_SECONDS=600` does the same for minutes."""

import random
import shutil
from pathlib import Path

import pytest

from weft_router_tests.hostile_clients import Hostile

pytestmark = [
    pytest.mark.component,
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="coordinators and sidecars meet in Redis"),
]


async def test_hostile_requests_leave_a_coordinator_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = await Hostile(tmp_path, 4.0, random.Random(30)).run("sidecars")
    assert status == 0, capsys.readouterr().out
