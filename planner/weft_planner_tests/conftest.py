"""Compile the simulator before the first test that may need it, and keep the simulations of whole plans short.

A test's time limit is for what it tests.
"""

import pytest

from weft_planner_tests.effort import short_runs

__all__ = ["short_runs"]

USERS = ("simulation", "solve", "plan", "study", "cli", "request", "goodput", "evaluation", "links", "report")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile, or load, what simulations run, when any of the chosen tests may simulate."""
    if any(user in item.path.name for item in session.items for user in USERS):
        from weft_planner.simulation.warm import warm

        warm()
