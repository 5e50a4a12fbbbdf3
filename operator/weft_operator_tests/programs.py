"""The programs that tests run, as `make setup` builds them."""

import os

import pytest

from weft_e2e.cluster.toolchain import TOOLS, tool_path


def program(name: str) -> str:
    """Return the path of a program of the local cluster; skip where tests run against a cluster of the user's own.

    Raises:
        SetupError: it is not built.
    """
    if os.environ.get("KUBE_CONTEXT") and not TOOLS[name].path.exists():
        pytest.skip(f"{name} is built for a local cluster only")
    return str(tool_path(name))
