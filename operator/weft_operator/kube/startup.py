"""Wait at the start until the API server serves our kinds, and say clearly what keeps the operator from its work."""

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
    """What can list objects; it blocks."""

    def list(self, api_version: str, kind: str, *, namespace: str = "", limit: int | None = None) -> list[Manifest]:
        """Return objects of a kind."""


async def await_kinds(api: KindLister, namespaces: Sequence[str], *, poll_s: float = POLL_S) -> None:
    """Wait until services can be listed where we work: Helm creates CRDs, rights and operator together.

    Of several namespaces it is enough that they can in one: the others are told, and must not keep it from its work.
    """
    told: set[str] = set()
    while True:
        listed, wait = False, False
        # With a list of namespaces there is no right to ask for all of them.
        for namespace in namespaces or ("",):
            for kind in (KIND, "CostProfile"):
                try:
                    await asyncio.to_thread(api.list, f"{GROUP}/{VERSION}", kind, namespace=namespace, limit=1)
                except NotFoundError:
                    wait = True
                    _tell(told, "crds_missing", group=GROUP, fix="apply the files in crds/")
                except ForbiddenError as error:
                    lack = str(error) if error.right is None else f"the operator may not {error.right}"
                    _tell(told, "right_missing", error=lack, fix=REMEDY)
                except ApiError as error:
                    wait = True
                    log.warning("api_not_ready", extra={"error": str(error)})
                else:
                    listed = listed or kind == KIND
        if listed and not wait:
            return
        await asyncio.sleep(poll_s)


def _tell(told: set[str], event: str, **more: str) -> None:
    """Log each fault once, however long it lasts."""
    words = f"{event} {more}"
    if words not in told:
        told.add(words)
        log.error(event, extra=more)
