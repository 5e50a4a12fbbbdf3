"""The attempt that the proxy carries: takes the worker's answer as the proxy shows it, within its deadlines."""

import asyncio
from time import monotonic
from typing import Final

from weft_router.picker.headers import status_of
from weft_router.picker.messages import BodyPart, HeadersPart, TrailersPart
from weft_router.roles.relay import RelayedResponse

TICK_S: Final = 0.5
"""How often the deadline is looked at."""
SERVER: Final = "weft"
"""What sidecars call themselves; an error of anyone else is the proxy's own."""


class ProxiedAttempt:
    """The connection of an upstream request that runs over a proxy (an ``UpstreamTransport``)."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._relayed: RelayedResponse | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.may_read = asyncio.Event()
        """Set while messages of the proxy may be read."""
        self.may_read.set()

    def begin(self, relayed: RelayedResponse) -> None:
        """Have an answer taken by ``relayed`` from now on."""
        self._relayed = relayed
        relayed.leg.attach(self)
        self._timer = self._loop.call_later(TICK_S, self._check)

    def pause(self) -> None:
        """Read nothing more of the worker's answer for now."""
        self.may_read.clear()

    def resume(self) -> None:
        """Read again."""
        self.may_read.set()

    def drop(self) -> None:
        """Take nothing more of the worker's answer."""
        self._relayed = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.may_read.set()

    def take(self, part: HeadersPart | BodyPart | TrailersPart) -> None:
        """Take a part of the answer; it is dropped if nobody waits for it any more."""
        relayed = self._relayed
        if relayed is None:
            return
        leg = relayed.leg
        leg.answered = leg.fresh = True
        if isinstance(part, HeadersPart):
            self._take_head(relayed, part)
        elif isinstance(part, BodyPart) and part.data:
            try:
                relayed.data(part.data)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with an answer ends this request and no other
                self._fail(relayed, getattr(error, "reason", "engine-error"), repr(error))
                return
        if leg.over:  # it was too long
            leg.notify_soon()
        elif self._relayed is not None and (isinstance(part, TrailersPart) or part.end):
            self.drop()
            leg.finish()

    def _take_head(self, relayed: RelayedResponse, part: HeadersPart) -> None:
        status, headers = status_of(part.fields), dict(part.fields)
        if status >= 500 and headers.get("server") != SERVER:
            # The proxy did not reach the worker, or lost it.
            reason = "timeout" if status == 504 else "disconnected"
            self._fail(relayed, reason, f"the proxy answered {status}")
            return
        relayed.head(status, headers)

    def _fail(self, relayed: RelayedResponse, reason: str, detail: str) -> None:
        relayed.leg.fail(reason, detail)  # which drops this
        relayed.leg.notify_soon()

    def _check(self) -> None:
        """End the wait for a worker that takes too long."""
        relayed = self._relayed
        if relayed is None:
            return
        if relayed.leg.late(monotonic()):
            self._fail(relayed, "timeout", "")
            return
        self._timer = self._loop.call_later(TICK_S, self._check)
