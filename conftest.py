"""For every stage of `make test`: fewer files to read, Ctrl-C for children, why a test failed before it passed, and
logging that no test leaves changed.

A stage of a marker reads only files that name it: reading takes longer than a look.
"""

import logging
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As scripts start what runs in the background: programs that tests start and interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_TOLD = 4000
"""Characters of a first try's words, from their end."""


@pytest.fixture(autouse=True)
def logging_restored() -> Iterator[None]:
    """Undo what a program under test sets for the logging of its process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a test file that never says the marker with which the expression of `-m` begins."""
    asked = re.match(r"(?!not\b)(\w+)\b(?! or)", config.getoption("-m"))
    if asked is None or collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    return True if f"mark.{asked[1]}" not in collection_path.read_text() else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell how a test failed that passed at its second try: pytest itself names it and keeps the reason."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"first try of {report.nodeid}", sep="_")
        terminalreporter.line(report.longreprtext[-_TOLD:])
        for name, text in report.sections:
            terminalreporter.section(name, sep="-")
            terminalreporter.line(text[-_TOLD:])
