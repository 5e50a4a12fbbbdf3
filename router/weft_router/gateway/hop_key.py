"""Write the key that a gateway signs with, and the document that its services verify by.

``python -m weft_router.gateway.hop_key FOLDER`` writes FOLDER/key.pem, which is secret, and FOLDER/jwks.json, which is
public. A folder that has a key already keeps it, and only jwks.json is written.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from weft_router.config.section import ConfigError
from weft_router.gateway.hop_token import key_set, read_key


def write(folder: Path) -> None:
    """Write both files.

    Raises:
        ConfigError: there is a key that cannot be used.
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "key.pem"
    if not path.exists():
        made = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(made)
    (folder / "jwks.json").write_text(json.dumps(key_set(read_key(path))) + "\n")


def main() -> int:
    """Write the files; return 0 when they are there."""
    parser = argparse.ArgumentParser(prog="python -m weft_router.gateway.hop_key", description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write key.pem and jwks.json")
    folder: Path = parser.parse_args().folder
    try:
        write(folder)
    except (OSError, ConfigError) as error:
        sys.stderr.write(f"weft hop key: {error}\n")
        return 1
    sys.stdout.write(f"{folder}/key.pem is for the gateway alone, {folder}/jwks.json for its services\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
