"""Change the roles of workers of a running ``weft local``: write a role file, and wait for the router's word."""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from weft_cli.errors import BadInputError
from weft_core.layouts import WORKER_ROLES
from weft_core.worker_roles import parse_role
from weft_e2e.local import kept

ROUTER_LOG = "router.log"
WAIT_S = 15.0
"""How long the new role is waited for: a second to read the file, and the time in which sessions are handed over."""
_POLL_S = 0.1


def role_file(worker: str) -> str:
    """Return the name of the file with a worker's role."""
    return f"role-{worker}"


@contextmanager
def announced(folder: Path) -> Iterator[None]:
    """Let ``weft local role`` find the folder of the service that runs: the latest start counts."""
    note = _note()
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if note.read_text() == str(folder):
                note.unlink()


def running_folder(logs: Path | None) -> Path:
    """Return the folder of the service whose roles are to change.

    Raises:
        BadInputError: none runs, as far as is known.
    """
    if logs is not None:
        return logs
    try:
        return Path(_note().read_text())
    except OSError:
        raise BadInputError("--logs", "no `weft local` runs here; start one, or name its folder of logs") from None


def workers_of(folder: Path) -> Mapping[str, Path | None]:
    """Return the workers of a service, and the files with their roles; None where a role is fixed.

    Raises:
        BadInputError: the folder has no workers' file.
    """
    try:
        listed = json.loads((folder / "workers.json").read_text())["workers"]
    except (OSError, ValueError, KeyError):
        raise BadInputError("--logs", f"{folder} is no folder of a `weft local`; name one") from None
    return {one["name"]: folder / one["roleFile"] if "roleFile" in one else None for one in listed}


def change(folder: Path, worker: str, role: str) -> str:
    """Write a worker's role, wait until it is in force, and return what happened.

    Raises:
        BadInputError: there is no such worker, or its role is fixed.
    """
    workers = workers_of(folder)
    if worker not in workers:
        raise BadInputError("WORKER", f"{worker} is not one of {', '.join(workers)}")
    file = workers[worker]
    if file is None:
        raise BadInputError("WORKER", f"{worker}: its engine has a fixed role; vllm and mock can change it")
    if parse_role(role) is None:
        raise BadInputError("ROLE", f"{role!r} is not one of {', '.join(WORKER_ROLES)}")
    log = folder / ROUTER_LOG
    with log.open("rb") as lines:
        lines.seek(0, os.SEEK_END)
        before = file.read_text().strip()
        if before == role:
            return f"{worker} is assigned {role} already"
        fresh = file.with_name(f"{file.name}.new")
        fresh.write_text(f"{role}\n")
        fresh.replace(file)
        rest = b""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            *whole, rest = (rest + lines.read()).split(b"\n")
            for line in whole:
                if (said := _outcome(line, worker)) is not None:
                    return said
            time.sleep(_POLL_S)
    return f"{worker} is assigned {role}; it still hands its sessions over ({log} says when it is done)"


def _outcome(line: bytes, worker: str) -> str | None:
    """Return what a line of the router's log says of the worker's change; None where it says nothing."""
    with contextlib.suppress(ValueError):
        found = json.loads(line)
        if found.get("worker") == worker and found.get("event") == "role_changed":
            return f"{worker}: {found['from']} -> {found['to']} in {found['seconds']:g} s"
        if found.get("worker") == worker and found.get("event") == "role_change_abandoned":
            return f"{worker} stays {found['from']}: the change to {found['to']} was not carried out yet"
    return None


def _note() -> Path:
    return kept.folder().parent / "local"
