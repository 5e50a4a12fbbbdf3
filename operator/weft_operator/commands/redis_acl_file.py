"""Write the ACL file of the chart's Redis: ``python -m weft_operator.commands.redis_acl_file``.

Users of services in an existing file are kept, so that pods can use Redis right after its restart, even while no
operator runs. All other users are defined here: without a password only PING is allowed.
"""

import argparse
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

OPERATOR = "operator"
"""The user of Weft's operator, which creates the users of services."""
PROBE = "probe"
"""The user of probes and of the chart's test, which need no secret for PING."""
_SERVICE_USER_PREFIX = "user weft."


def acl_lines(password: bytes, existing: Iterable[str]) -> list[str]:
    """Return the lines of the file: Weft's own users, and the existing users of services."""
    digest = hashlib.sha256(password).hexdigest()
    return [
        "user default off",
        f"user {OPERATOR} on #{digest} ~* &* +@all",
        f"user {PROBE} on nopass +ping",
        *(line for line in existing if line.startswith(_SERVICE_USER_PREFIX)),
    ]


def main() -> None:
    """Write the file atomically, readable by its owner and group only.

    Raises:
        SystemExit: there is no password.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--password-file", type=Path, required=True)
    parser.add_argument("--file", type=Path, required=True)
    arguments = parser.parse_args()
    password = arguments.password_file.read_bytes().strip()
    if not password:
        raise SystemExit(f"{arguments.password_file} is empty: give the Secret a password")
    existing = arguments.file.read_text().splitlines() if arguments.file.exists() else []
    new = arguments.file.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o660), "w") as file:
        file.writelines(line + "\n" for line in acl_lines(password, existing))
    new.replace(arguments.file)


if __name__ == "__main__":
    main()
