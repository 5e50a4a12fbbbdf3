"""Check which watches are refused: kopf retries them for minutes and reports that only in its log."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from weft_operator.errors import REMEDY, ApiError, ForbiddenError, Right
from weft_operator.kube.request_stats import RequestStats
from weft_operator.kube.watch_handlers import WATCHED_KINDS

CHECK_INTERVAL_S = 150.0
"""Shorter than ``request_stats.MISSING_RIGHT_S``, so that a missing right is reported without gaps."""

log = logging.getLogger(__name__)


class WatchClient(Protocol):
    """A client that can start a watch; calls block."""

    stats: RequestStats

    def try_watch(self, api_version: str, kind: str, *, namespace: str = "") -> None:
        """Start a watch and end it."""


async def try_watches(api: WatchClient, namespaces: Sequence[str], *, pause_s: float = CHECK_INTERVAL_S) -> None:
    """Try every watch periodically, in all namespaces when none is named, until cancelled.

    Refused ones are recorded as missing rights in ``api.stats`` and logged once.
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
                    found |= missing  # the API server failed, which says nothing about rights
                for right in missing:
                    api.stats.record_missing(right)  # again and again: a check of many namespaces takes long
        for right in sorted(found - missing):
            log.error("right_missing", extra={"error": f"the operator may not {right}", "fix": REMEDY})
        for right in missing - found:
            api.stats.ignore_missing(right)
        missing = frozenset(found)
        await asyncio.sleep(pause_s)
