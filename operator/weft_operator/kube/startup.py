"""Wait at startup until the API server serves Weft's kinds; log what is missing."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from weft_operator.api.objects import Manifest
from weft_operator.api.service import GROUP, KIND, VERSION
from weft_operator.errors import REMEDY, ApiError, ForbiddenError, NotFoundError

POLL_S = 2.0

log = logging.getLogger(__name__)


class KindLister(Protocol):
    """A client that can list objects; calls block."""

    def list(self, api_version: str, kind: str, *, namespace: str = "", limit: int | None = None) -> list[Manifest]:
        """Return objects of a kind."""


async def await_kinds(api: KindLister, namespaces: Sequence[str], *, poll_s: float = POLL_S) -> None:
    """Wait until services can be listed: Helm creates CRDs, rights and operator at the same time.

    One namespace of several is enough: missing rights in the others are logged and do not stop the operator.
    """
    logged: set[str] = set()
    while True:
        listed, wait = False, False
        # With a list of namespaces the operator has no right to list in all of them.
        for namespace in namespaces or ("",):
            for kind in (KIND, "CostProfile"):
                try:
                    await asyncio.to_thread(api.list, f"{GROUP}/{VERSION}", kind, namespace=namespace, limit=1)
                except NotFoundError:
                    wait = True
                    _log_once(logged, "crds_missing", group=GROUP, fix="apply the files in crds/")
                except ForbiddenError as error:
                    lack = str(error) if error.right is None else f"the operator may not {error.right}"
                    _log_once(logged, "right_missing", error=lack, fix=REMEDY)
                except ApiError as error:
                    wait = True
                    log.warning("api_not_ready", extra={"error": str(error)})
                else:
                    listed = listed or kind == KIND
        if listed and not wait:
            return
        await asyncio.sleep(poll_s)


def _log_once(logged: set[str], event: str, **fields: str) -> None:
    """Log each fault once."""
    text = f"{event} {fields}"
    if text not in logged:
        logged.add(text)
        log.error(event, extra=fields)
