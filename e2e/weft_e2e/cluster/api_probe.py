"""Wait until a URL of the API server answers 200: `api_probe.py URL PKI_FOLDER USER`.

Run by file path with the standard library alone, because it is a gate of init.py. Exits 1 after 20 s, and is then
started again. Where WEFT_TIMEOUT_SCALE says that the machine is slow, it asks less often: an answer costs the starting
server time.
"""

import http.client
import os
import ssl
import sys
import time
import warnings
from pathlib import Path
from urllib.parse import urlsplit

LIMIT_SECONDS = 20.0
ANSWER_SECONDS = 2.0
INTERVAL = 0.1


def scaled(seconds: float) -> float:
    """Return the seconds times WEFT_TIMEOUT_SCALE, which deadlines.py has checked."""
    return seconds * float(os.environ.get("WEFT_TIMEOUT_SCALE", "1"))


def user_context(folder: Path, user: str) -> ssl.SSLContext:
    """Return what a connection needs to speak for a user whose certificate lies in a folder."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(str(folder / f"{user}.crt"), str(folder / f"{user}.key"))
    return context


def fetch(url: str, context: ssl.SSLContext) -> bytes | None:
    """Return the body of the answer to a GET, or None unless it comes in time and with status 200."""
    parts = urlsplit(url)
    connection = http.client.HTTPSConnection(parts.netloc, context=context, timeout=scaled(ANSWER_SECONDS))
    # A server that starts may reset a connection before the handshake: Python leaves that socket to its collector.
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        try:
            connection.request("GET", parts.path)
            answer = connection.getresponse()
            return answer.read() if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


def main() -> int:
    url, folder, user = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    context = user_context(folder, user)
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        if fetch(url, context) is not None:
            return 0
        time.sleep(scaled(INTERVAL))
    return 1


if __name__ == "__main__":
    sys.exit(main())
