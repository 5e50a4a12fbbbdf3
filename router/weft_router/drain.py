"""Tell the router process of this pod to drain: ``python -m weft_router.drain``, the preStop hook of a sidecar."""

import http.client
import os
import sys

from weft_router.ask import URL, ask, read_token


def main() -> int:
    """Post to /drain over a connection that proves the internal token; return 0 when it was accepted."""
    url = os.environ.get("WEFT_DRAIN_URL", f"{URL}/drain")
    try:
        status, _ = ask(url, token=read_token(), method="POST")
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"weft drain: {url} did not accept the drain: {error}\n")
        return 1
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
