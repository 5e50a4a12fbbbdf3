"""Shorter simulations for tests that ask for whole plans: what is decided stays the same, figures get rougher."""

import pytest

from weft_planner import trials


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a sixth of the usual rounds."""
    monkeypatch.setattr(trials, "SCREEN_ROUNDS", 240)
    monkeypatch.setattr(trials, "FULL_ROUNDS", 400)
    monkeypatch.setattr(trials, "SHORTEST_S", 3.0)
