"""Read a worker's role from its file, which the kubelet writes from the label of the worker's pod."""

from pathlib import Path

from weft_core.layouts import WORKER_ROLES, WorkerRole
from weft_core.worker_roles import parse_role
from weft_router.config.section import ConfigError

MAX_BYTES = 64
"""More than any role has; a longer file has none, and is not read to its end."""


def read_role(path: Path, *, field: str = "WEFT_ROLE_FILE") -> WorkerRole:
    """Return the role in a file that ``field`` names.

    Raises:
        ConfigError: it cannot be read, or has no role.
    """
    try:
        with path.open("rb") as file:
            word = file.read(MAX_BYTES + 1).decode("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"{field}={path}: cannot be read ({error.strerror}); check the path") from error
    role = parse_role(word) if len(word) <= MAX_BYTES else None
    if role is None:
        raise ConfigError(f"{field}={path}: {word[:MAX_BYTES]!r} is no role; write one of {', '.join(WORKER_ROLES)}")
    return role
