"""What vLLM loads: an endpoint plug-in that puts itself around app and engine client, and tells that it is there.

On a vLLM that it was not tested with it does nothing but say so: streams carry no version header, the version page is a
404 that names the version, and the router goes on without handles.
"""

import logging
import os
from importlib import metadata
from pathlib import Path
from typing import Any

from weft_vllm.guard import Guard
from weft_vllm.tap import VERSION, HandleMiddleware, around

log = logging.getLogger("vllm.weft")

TESTED = ("0.30.", "0.31.", "0.32.")
"""Beginnings of the versions of vLLM that it was run with: ``make test-plugin``."""
PROOF_FILE = "WEFT_ENGINE_PROOF_FILE"
"""Names the file with the word that requests with transfer parameters must carry; without it none is asked for."""
PAGE = "/weft/plugin"


class Plugin:
    """vLLM's EndpointPlugin protocol."""

    name = "weft_kv"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self.vllm = _version()
        self.active = self.vllm.startswith(TESTED)
        self.guard = Guard(_proof())
        if not self.active:
            log.warning(
                "weft_kv: stays off, as it was not tested with vLLM %s (but with %s*); streams carry no KV handles",
                self.vllm,
                "*, ".join(TESTED),
            )

    def attach_router(self, app: Any) -> None:
        """Add the middleware, and the page by which a router finds out what this engine can do."""
        status = 200 if self.active else 404
        app.add_api_route(PAGE, self._page, methods=["GET"], include_in_schema=False, status_code=status)
        if self.active:
            app.add_middleware(HandleMiddleware, guard=self.guard)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:  # noqa: ARG002 - vLLM's signature
        """Put the tap and the guard around the one engine client that all of the server's handlers share."""
        if self.active and engine_client is not None:
            around(engine_client, self.guard)

    async def _page(self) -> dict[str, object]:
        return {"plugin": VERSION, "vllm": self.vllm, "handles": self.active, "proof": self.active and self.guard.asks}


def _version() -> str:
    try:
        return metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return "unknown"


def _proof() -> str:
    """Return the word that the router has to know.

    Raises:
        SystemExit: a file is named and cannot be read or is empty. vLLM catches exceptions of plug-ins and serves on
            without them, but an engine without the guard that it was promised must not.
    """
    name = os.environ.get(PROOF_FILE)
    if not name:
        return ""
    try:
        word = Path(name).read_text().strip()
    except OSError as error:
        raise SystemExit(
            f"{PROOF_FILE}: {name} cannot be read ({error.strerror}); mount it or unset the variable"
        ) from error
    if not word:
        raise SystemExit(f"{PROOF_FILE}: {name} is empty; write the proof into it or unset the variable")
    return word
