"""Run a command in a container of a pod, as ``kubectl exec`` does: over a WebSocket to the API server."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from kubernetes.stream.ws_client import ERROR_CHANNEL, WSClient
from websocket import WebSocketBadStatusException, WebSocketException

from weft_operator.api.objects import ObjectKey
from weft_operator.errors import ApiError, ForbiddenError, NotFoundError, TransientError
from weft_operator.kube.client import KubeClient, object_path

TIMEOUT_S = 15.0
MAX_WORDS = 300
"""Characters of what a command said that are shown."""
_REFUSALS: dict[int, type[ApiError]] = {401: ForbiddenError, 403: ForbiddenError, 404: NotFoundError}


def output_of(api: KubeClient, pod: ObjectKey, container: str, command: Sequence[str]) -> str:
    """Return what a command wrote.

    Raises:
        ForbiddenError: the caller has no right to ``pods/exec``.
        ApiError: the command could not be run, or failed.
    """
    query = [("container", container), ("stdout", "true"), ("stderr", "true"), *(("command", word) for word in command)]
    url = f"{api.websocket_url}{object_path(pod)}/exec?{urlencode(query)}"
    try:
        with _process(api, url) as process:
            process.run_forever(timeout=TIMEOUT_S)
            if process.is_open():
                raise TransientError(f"pods/exec: {command[0]} did not end within {TIMEOUT_S:.0f} s")
            output, said = str(process.read_stdout()), str(process.read_stderr())
            verdict = _read_status(str(process.read_channel(ERROR_CHANNEL)))
    except WebSocketBadStatusException as error:
        kind = _REFUSALS.get(error.status_code, TransientError)
        raise kind(f"POST pods/exec: {error.status_code}", status=error.status_code) from error
    except (WebSocketException, OSError) as error:
        raise TransientError(f"pods/exec: no answer from the API server: {type(error).__name__}") from error
    if verdict.get("status") != "Success":
        why = said.strip() or str(verdict.get("message") or "it was cut off")
        raise TransientError(f"pods/exec: {command[0]} failed: {why[-MAX_WORDS:]}")
    return output


@contextmanager
def _process(api: KubeClient, url: str) -> Iterator[Any]:
    """Start a command; its connection is closed at the end, whoever ended it."""
    process: Any = WSClient(api.configuration, url, api.credentials(), capture_all=False)  # type: ignore[no-untyped-call]
    try:
        yield process
    finally:
        process.sock.shutdown()  # its own close() leaves a connection open that the API server ended


def _read_status(text: str) -> dict[str, Any]:
    """Return how a command ended, as the API server says it."""
    try:
        status = json.loads(text or "{}")
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}
