"""Tell the router process of this pod to drain: ``python -m weft_router.drain``, the preStop hook of a sidecar."""

import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

URL = "http://127.0.0.1:8080/drain"
TIMEOUT_S = 5.0


def main() -> int:
    """Post to /drain with the internal token; return 0 when it was accepted."""
    path = Path(os.environ.get("WEFT_TOKEN_FILE", "/etc/weft-token/token"))
    url = os.environ.get("WEFT_DRAIN_URL", URL)
    try:
        token = path.read_text().strip()
        request = urllib.request.Request(url, data=b"", method="POST", headers={"X-Weft-Token": token})  # noqa: S310
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310 - our own loopback port
            return 0 if response.status == 200 else 1
    except (OSError, urllib.error.URLError) as error:
        sys.stderr.write(f"weft drain: {url} did not accept the drain: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
