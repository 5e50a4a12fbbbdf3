"""Run Python code in a process of its own, where no test has imported anything."""

import subprocess
import sys


def python(code: str, *, variables: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run code and return what it printed."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=variables
    )
