"""Let any process that shares a port answer a scrape for all of them: they exchange their counts.

They meet in a folder that their parent made, each with a Unix socket named by its place; whoever connects is told
everything at once. A sibling that does not answer in time is left out: its series are its own, so nothing looks reset.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from weft_router.telemetry.metrics import Metrics

PATIENCE_S = 0.5
MOST_BYTES = 16 * 2**20


class PeerProcesses:
    """The processes beside this one."""

    def __init__(self, folder: Path, place: int, metrics: Metrics, *, refresh: Callable[[], None]) -> None:
        """Meet in ``folder`` as number ``place``; ``refresh`` brings this process's gauges up to date."""
        self._folder = folder
        self._place = place
        self._metrics = metrics
        self._refresh = refresh
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to answer the others; the socket of one that died in this place is replaced."""
        path = self._path(self._place)
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._tell, path)

    async def stop(self) -> None:
        """Leave."""
        if self._server is not None:
            self._path(self._place).unlink(missing_ok=True)
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def render(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics page of all, and its content type."""
        self._refresh()
        places = sorted(int(path.stem) for path in self._folder.glob("*.sock") if path.stem.isdigit())
        others = [place for place in places if place != self._place]
        dumps = await asyncio.gather(*map(self._ask, others))
        found = {str(place): dump for place, dump in zip(others, dumps, strict=True) if dump}
        return self._metrics.render(accept, place=str(self._place), others=found)

    async def _ask(self, place: int) -> bytes:
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_unix_connection(self._path(place), limit=MOST_BYTES)
                try:
                    dump = await reader.read(-1)
                finally:
                    writer.close()
        except OSError:  # the time is over, too
            return b""
        return dump if dump.endswith(b"}") and len(dump) <= MOST_BYTES else b""

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        with contextlib.suppress(OSError):
            self._refresh()
            writer.write(self._metrics.dump())
            writer.write_eof()
            async with asyncio.timeout(PATIENCE_S):
                await writer.drain()
        writer.close()

    def _path(self, place: int) -> Path:
        return self._folder / f"{place}.sock"
