"""Change what may change while a router runs: a changed file is taken over, a bad one keeps the old one active."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import Any

from weft_router.config.file import RouterConfig, read_config
from weft_router.config.section import ConfigError

log = logging.getLogger(__name__)

LIVE_SECTIONS = ("routing", "slo", "qos", "adapters")
"""What a running router takes over; anything else belongs to engines, ports or files and needs a restart."""
FIXED_ROUTING = (
    "prefill_concurrency", "prefill_queue_limit", "stats_window_seconds", "session_ttl_seconds", "seed",
    "slices", "first_token_from_prefill", "resume",
)  # fmt: skip
"""Of ``routing``: what queues, windows and engine adapters are built with."""
PERIOD_S = 1.0


def combined(main: bytes, live: bytes | None, *, source: str) -> RouterConfig:
    """Return the configuration of router.json with the sections of the file beside it, which win.

    Raises:
        ConfigError: one of them is not understood, or the second says more than it may.
    """
    if live is None:
        return read_config(main, source=source)
    try:
        body, over = json.loads(main), json.loads(live)
    except ValueError as error:
        raise ConfigError(f"{source}: is not valid JSON; correct it") from error
    if not isinstance(body, dict) or not isinstance(over, dict):
        raise ConfigError(f"{source}: must be a JSON object")
    foreign = sorted(over.keys() - set(LIVE_SECTIONS))
    if foreign:
        raise ConfigError(f"{source}: {foreign[0]}: may only stand in router.json; move it there")
    merged: dict[str, Any] = {**body, **over}
    return read_config(json.dumps(merged).encode(), source=source)


class LiveConfig:
    """The configuration of a running process; ``current`` is the active one."""

    def __init__(self, main: Path, live: Path | None, current: RouterConfig) -> None:
        self._files = tuple(path for path in (main, live) if path is not None)
        self._main = main
        self._live = live
        self._stamps = self._read_stamps()
        self.current = current
        self.written_at = self._written_at()
        """When the active files were last written, in seconds since 1970; 0 if unknown."""

    def reload(self) -> RouterConfig | None:
        """Return the configuration if it changed and can be taken over; None, and a line in the log, otherwise."""
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return None
        self._stamps = stamps
        try:
            live = self._live.read_bytes() if self._live is not None else None
            fresh = combined(self._main.read_bytes(), live, source=str(self._live or self._main))
        except OSError as error:
            log.warning("configuration_unreadable", extra={"error": type(error).__name__})
            self._stamps = ()  # a file that is being swapped is there again in a moment
            return None
        except ConfigError as error:
            log.warning("configuration_refused", extra={"error": str(error)})
            return None
        if fresh == self.current:
            self.written_at = self._written_at()
            return None
        fixed = needs_restart(self.current, fresh)
        if fixed:
            log.warning("configuration_needs_restart", extra={"fields": fixed})
            return None
        self.current = fresh
        self.written_at = self._written_at()
        log.info("configuration_read")
        return fresh

    async def run(self, take: Callable[[RouterConfig], None]) -> None:
        """Hand every new configuration over, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                fresh = self.reload()
                if fresh is not None:
                    take(fresh)
            except Exception:  # the next change may be a better one
                log.exception("configuration_not_taken_over")

    def age(self) -> float:
        """Return the seconds since the active configuration was written; it grows while no new one is written."""
        return max(0.0, time() - self.written_at) if self.written_at else 0.0

    def _written_at(self) -> float:
        return max((stamp[0] for stamp in self._stamps), default=0) / 1e9

    def _read_stamps(self) -> tuple[tuple[int, int, int], ...]:
        stamps = []
        for path in self._files:
            try:
                stat = path.stat()
                stamps.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
            except OSError:
                stamps.append((0, 0, 0))
        return tuple(stamps)


def needs_restart(old: RouterConfig, new: RouterConfig) -> list[str]:
    """Return what differs and cannot be taken over by a running process."""
    fields = [name for name in RouterConfig.model_fields if name not in LIVE_SECTIONS]
    found = [name for name in fields if getattr(old, name) != getattr(new, name)]
    return found + [f"routing.{name}" for name in FIXED_ROUTING if _differs(old.routing, new.routing, name)]


def _differs(old: object, new: object, name: str) -> bool:
    return bool(getattr(old, name) != getattr(new, name))
