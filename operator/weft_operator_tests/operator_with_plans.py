"""The operator, with a planner that answers at once, as a process of its own.

What a kill or a fault does to writes does not depend on how a plan was found. The plan follows from the request alone:
the smallest and the largest degree of the first pool for the two roles, a worker more for a higher rate, which decodes,
or prefills where prompts are long.
"""

import multiprocessing
import os
import sys
import threading
from pathlib import Path
from unittest import mock

from weft_cli.running import run
from weft_operator.controllers import setup
from weft_operator.controllers.cli import operator
from weft_operator.planning.planner_process import Answer
from weft_operator.planning.request import Request
from weft_operator_tests.samples import group, planned

LONG_PROMPT = 2000
"""Tokens of a first prompt beyond which a worker more prefills."""


async def solve(request: Request, *, deadline: float) -> Answer:
    """Answer as the planner does, without its work."""
    del deadline
    pool = request["capacity"]["pools"][0]
    degrees = pool.get("degrees") or [1]
    workload = request["workload"]
    more = int(workload["arrivalRate"] > 1)
    long = (workload.get("firstPrompt") or {}).get("mean", 0) > LONG_PROMPT
    return planned(
        group("decode", max(degrees), 1 if long else 1 + more, pool["name"]),
        group("prefill", min(degrees), 1 + more if long else 1, pool["name"]),
    )


def token(_bytes: int | None = None) -> str:
    """Return the same token in every life: names follow from templates, and these from the token's hash."""
    return "0123456789abcdef" * 4


def main(environ: dict[str, str], log: Path) -> None:
    """Run as a ``multiprocessing`` process until SIGTERM; exits when its parent process exits."""
    with log.open("ab") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    os.environ.clear()
    os.environ.update(environ)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # The client's package reads the variable when it is imported, which was before this process began.
    kubeconfig = mock.patch("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", environ["KUBECONFIG"])
    with kubeconfig, mock.patch.object(setup, "solve", solve), mock.patch("secrets.token_hex", token):
        sys.exit(run(operator, [], prog="weft operator"))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
