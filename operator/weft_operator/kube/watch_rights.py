"""Find out which watches are refused: kopf asks again for minutes, and tells nobody but the log that it does."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from weft_operator.errors import REMEDY, ApiError, ForbiddenError, Right
from weft_operator.kube.request_stats import RequestStats
from weft_operator.kube.watch_handlers import WATCHED_KINDS

TRY_S = 150.0
"""A right counts as missing a little longer than that (``traffic.LACK_S``), so that it does not come and go."""

log = logging.getLogger(__name__)


class WatchClient(Protocol):
    """What can begin a watch; it blocks."""

    stats: RequestStats

    def try_watch(self, api_version: str, kind: str, *, namespace: str = "") -> None:
        """Begin a watch and end it."""


async def try_watches(api: WatchClient, namespaces: Sequence[str], *, pause_s: float = TRY_S) -> None:
    """Try every watch again and again, those of all namespaces when none is named, until cancelled.

    What is refused counts among the missing rights of ``api.traffic``, and is logged once.
    """
    missing: frozenset[Right] = frozenset()
    while True:
        found: set[Right] = set()
        for namespace in namespaces or ("",):
            for api_version, kind in WATCHED_KINDS:
                try:
                    await asyncio.to_thread(api.try_watch, api_version, kind, namespace=namespace)
                except ForbiddenError as error:
                    found |= {error.right} if error.right is not None else set()
                except ApiError:
                    found |= missing  # it is in trouble, which passes and their metrics tell; nothing is taken back
                for right in missing:
                    api.stats.record_missing(right)  # over many namespaces a round takes long
        for right in sorted(found - missing):
            log.error("right_missing", extra={"error": f"the operator may not {right}", "fix": REMEDY})
        for right in missing - found:
            api.stats.ignore_missing(right)
        missing = frozenset(found)
        await asyncio.sleep(pause_s)
