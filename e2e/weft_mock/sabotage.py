"""Carry out the fault that meets one reply: the process dies, the reply hangs, or the connection is cut."""

import asyncio

from aiohttp import web

from weft_mock.engine import Engine
from weft_mock.faults import ReplyFault


class CutError(Exception):
    """Report that the connection was closed on purpose: nothing more can be sent."""


class Sabotage:
    """The fault of one request, if it has one; asked at each point where it may strike."""

    def __init__(self, engine: Engine, request: web.Request, fault: ReplyFault | None) -> None:
        """Watch over one reply."""
        self._engine = engine
        self._request = request
        self._fault = fault

    @property
    def armed(self) -> bool:
        """Return whether this request has a fault."""
        return self._fault is not None

    async def at(self, stage: str) -> None:
        """Strike if the fault is for this point of the reply.

        Raises:
            CutError: the connection is closed.
        """
        if self._fault is not None and self._fault.stage == stage:
            await self._strike(self._fault)

    async def after(self, tokens: int) -> None:
        """Strike if the fault is for the token just sent.

        Raises:
            CutError: the connection is closed.
        """
        if self._fault is not None and self._fault.token is not None and tokens >= self._fault.token:
            await self._strike(self._fault)

    def half(self, data: bytes) -> bytes | None:
        """Return the first half of what was about to be sent when the reply is to be cut there, else None."""
        return data[: len(data) // 2] if self._fault is not None and self._fault.stage == "half" else None

    async def _strike(self, fault: ReplyFault) -> None:
        if fault.action == "cut":
            if self._request.transport is not None:
                self._request.transport.close()
            raise CutError
        if fault.action == "die":
            self._engine.die()
        # A hanging reply ends when its client goes away, as does this one's handler.
        await asyncio.get_running_loop().create_future()
