"""Send both legs of a round at once, for engines that pair them by themselves: SGLang's bootstrap, Neuron's peers.

Each leg waits in its engine for the other. If one fails, the other is cancelled; a prefill leg that outlives its decode
leg is awaited in the background, because its engine may still send KV.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from weft_router.errors import EngineAnsweredError, StreamBrokenError, UpstreamFailedError

log = logging.getLogger(__name__)


class ConcurrentLegs:
    """Runs pairs of legs, and awaits prefill legs that outlive their decode leg."""

    def __init__(self) -> None:
        self._draining: set[asyncio.Task[None]] = set()

    async def run(
        self, prefill: Awaitable[None], decode: Awaitable[None], *, headers_sent: Callable[[], bool] = lambda: False
    ) -> None:
        """Run both legs; return when the decode leg has finished.

        A failure of the prefill leg is ignored once ``headers_sent`` returns True: the response has started.

        Raises:
            UpstreamFailedError: one of them failed before anything was sent.
            StreamBrokenError: the stream ended early.
        """
        first = asyncio.ensure_future(prefill)
        second = asyncio.ensure_future(decode)
        both = {first, second}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if first.done() and not second.done():
                if not headers_sent():
                    _raise(first)
                await asyncio.wait({second})
            _raise(second)
        except BaseException:
            await _end(both)
            raise
        if not first.done():
            self._drain(first)

    def _drain(self, leg: "asyncio.Future[None]") -> None:
        task = asyncio.get_running_loop().create_task(_wait(leg))
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)


def _raise(leg: "asyncio.Future[None]") -> None:
    error = leg.exception()
    if error is not None:
        raise error


async def _end(legs: Iterable["asyncio.Future[None]"]) -> None:
    for leg in legs:
        leg.cancel()
    await asyncio.gather(*legs, return_exceptions=True)


async def _wait(leg: "asyncio.Future[None]") -> None:
    try:
        await leg
    except (UpstreamFailedError, StreamBrokenError) as error:
        log.info("prefill_drained", extra={"reason": error.reason})
    except EngineAnsweredError as error:
        log.info("prefill_drained", extra={"reason": f"status {error.status}"})
