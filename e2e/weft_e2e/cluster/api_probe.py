"""Wait until a URL of the API server answers 200: `api_probe.py URL PKI_FOLDER USER`.

Run by file path with the standard library alone, because it is a gate of init.py. Exits 1 after
20 s, and is then started anew.
"""

import http.client
import ssl
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

LIMIT_SECONDS = 20.0
INTERVAL = 0.1


def answers(url: str, context: ssl.SSLContext) -> bool:
    """Return whether a GET of `url` is answered with 200 within two seconds."""
    parts = urlsplit(url)
    connection = http.client.HTTPSConnection(parts.netloc, context=context, timeout=2)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def main() -> int:
    url, folder, user = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(str(folder / f"{user}.crt"), str(folder / f"{user}.key"))
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        if answers(url, context):
            return 0
        time.sleep(INTERVAL)
    return 1


if __name__ == "__main__":
    sys.exit(main())
