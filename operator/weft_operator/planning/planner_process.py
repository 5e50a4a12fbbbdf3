"""Run the planner as a child process with a deadline: a hanging or crashing solver never stops the operator."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weft_core.plan import Plan, PlanError, canonical_json, plan_from_json
from weft_operator.planning.request import Request

PLANNER = (sys.executable, "-m", "weft_planner", "solve")

BAD_REQUEST = 2
"""Exit status with which the planner refuses a request; stderr says why in one line."""

OF_NODES = ("TooFewGpus", "NotPlaceable")
"""Refusals for lack of GPUs."""

_TAIL = 400
"""Longest part of the planner's stderr in a message, in characters."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and its cost profile, and that of each pool where pools differ."""

    plan: Plan
    profile: Mapping[str, Any]
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no plan; ``passing`` when the same request may get a plan later."""

    reason: str
    message: str
    passing: bool = False


Answer = Planned | Refused


async def solve(request: Request, *, deadline: float, command: Sequence[str] = PLANNER) -> Answer:
    """Run the planner; there is always an answer within ``deadline`` seconds, and no process is left."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Refused("PlannerCrashed", f"the planner cannot be started: {error.strerror}", passing=True)
    _prefer_as_victim(process.pid)
    try:
        async with asyncio.timeout(deadline):
            out, err = await process.communicate(json.dumps(request).encode())
    except TimeoutError:
        return Refused(
            "PlannerTimeout",
            f"the planner gave no answer within {deadline:g} s and was killed; raise the chart's "
            "operator.plannerDeadlineSeconds, or narrow degrees and bounds",
            passing=True,
        )
    finally:
        await _end(process)
    answer = read_answer(process.returncode, out, err.decode(errors="replace").strip())
    if isinstance(answer, Refused) and answer.reason in OF_NODES and _saw_nodes(request):
        return replace(answer, passing=True)  # GPUs of nodes become free, and nodes are added
    return answer


def _saw_nodes(request: Request) -> bool:
    return any("nodes" in pool for pool in (request.get("capacity") or {}).get("pools", ()))


def read_answer(status: int | None, out: bytes, err: str) -> Answer:
    """Return the answer from the planner's exit status, standard output and standard error."""
    tail = err[-_TAIL:]
    if status == BAD_REQUEST:
        return Refused("InvalidSpec", tail or "the planner refused the request")
    if status != 0:
        how = _signal_name(-status) if status is not None and status < 0 else f"status {status}"
        last = f": {tail}" if tail else ""
        return Refused("PlannerCrashed", f"the planner ended with {how}{last}", passing=True)
    try:
        body = json.loads(out)
        if not isinstance(body, dict):
            raise TypeError(f"an object is expected, not {type(body).__name__}")
        if body["status"] != "ok":
            return Refused(str(body.get("reason") or "Infeasible"), str(body.get("message", "no layout fits")))
        plan = body["plan"]
        if not isinstance(plan, dict):
            raise TypeError(f"plan: an object is expected, not {type(plan).__name__}")
        profiles = _differing(body.get("profiles", {}))
        usual = next(iter(profiles.values())) if profiles else body["profile"]
        return Planned(plan=plan_from_json(plan), profile=dict(usual), profiles=profiles)
    except (ValueError, KeyError, TypeError, AttributeError, PlanError) as error:
        return Refused("PlannerCrashed", f"the planner's answer cannot be read: {error!r}", passing=True)


def _differing(profiles: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the profile of each pool, none when they are all the same.

    Pools without planned workers are included, so that a plan that uses another pool changes no running worker.
    """
    known: dict[str, Mapping[str, Any]] = {pool: dict(profile) for pool, profile in sorted(profiles.items())}
    return known if len({canonical_json(profile) for profile in known.values()}) > 1 else {}


def _signal_name(number: int) -> str:
    try:
        return f"signal {signal.Signals(number).name}"
    except ValueError:  # real-time signals have numbers only
        return f"signal {number}"


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _prefer_as_victim(pid: int) -> None:
    """Let the kernel kill the planner, not the operator, when the container runs out of memory."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000", encoding="ascii")
