"""Spares a stage of `make test` the reading of files without tests of it: reading takes longer than a look."""

import re
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a test file that never says the marker with which the expression of `-m` begins."""
    asked = re.match(r"(cluster|apiserver|alone|engine)\b(?! or)", config.getoption("-m"))
    if asked is None or collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    return True if f"mark.{asked[1]}" not in collection_path.read_text() else None
