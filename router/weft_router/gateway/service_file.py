"""Services that a file lists, for gateways outside of a cluster: read again when it changes."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from pathlib import Path

from weft_router.background import guarded
from weft_router.config.gateway import read_services
from weft_router.config.process import read_file
from weft_router.config.section import ConfigError
from weft_router.gateway.served_service import ServedService, listed_service
from weft_router.gateway.service_source import ServiceSource

log = logging.getLogger(__name__)

PERIOD_S = 1.0


class ServiceFile(ServiceSource):
    """The services of a file."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ConfigError: it cannot be read, or is not understood.
        """
        super().__init__()
        self._path = path
        self._raw = b""
        self._refused = ""
        """What was wrong with the file when it was read last."""
        self._services = self._read()

    @property
    def listed(self) -> bool:
        """Return True: it was read at the start."""
        return True

    def services(self) -> Iterable[ServedService]:
        """Return the services of the file."""
        return self._services

    def work(self) -> list[Coroutine[None, None, None]]:
        """Return the look at the file, once a second."""
        return [self._run()]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            await guarded(self._look)

    async def _look(self) -> None:
        before = self._raw
        try:
            found = self._read()
        except ConfigError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                log.warning("services_refused", extra={"error": self._refused})
            return
        self._refused = ""
        if self._raw != before:
            self._services = found
            log.info("services_read", extra={"services": len(found)})
            self.on_change()

    def _read(self) -> tuple[ServedService, ...]:
        self._raw = read_file(self._path, "servicesFile")
        entries = read_services(self._raw, source=str(self._path))
        self.heard()
        return tuple(listed_service(entry, place) for place, entry in enumerate(entries))
