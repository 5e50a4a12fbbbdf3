"""Write the file of users that the chart's Redis starts with: ``python -m weft_operator.commands.redis_acl_file``.

The users of services that the file holds from before stay, so that pods use Redis again at once after its restart, also
while no operator runs. All others are as they are here: nobody without a password may do anything but PING.
"""

import argparse
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

OPERATOR = "operator"
"""The user of Weft's operator, which makes the users of services."""
PROBE = "probe"
"""The user of probes and of the chart's test, which need no secret to learn whether Redis answers."""
_OF_SERVICES = "user weft."


def acl_lines(password: bytes, before: Iterable[str]) -> list[str]:
    """Return the lines of the file: our own users and, of those from before, the users of services."""
    digest = hashlib.sha256(password).hexdigest()
    return [
        "user default off",
        f"user {OPERATOR} on #{digest} ~* &* +@all",
        f"user {PROBE} on nopass +ping",
        *(line for line in before if line.startswith(_OF_SERVICES)),
    ]


def main() -> None:
    """Write the file in one step, for its owner and group alone.

    Raises:
        SystemExit: there is no password.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--password-file", type=Path, required=True)
    parser.add_argument("--file", type=Path, required=True)
    asked = parser.parse_args()
    password = asked.password_file.read_bytes().strip()
    if not password:
        raise SystemExit(f"{asked.password_file} is empty: give the Secret a password")
    before = asked.file.read_text().splitlines() if asked.file.exists() else []
    new = asked.file.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o660), "w") as file:
        file.writelines(line + "\n" for line in acl_lines(password, before))
    new.replace(asked.file)


if __name__ == "__main__":
    main()
