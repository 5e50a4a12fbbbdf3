"""When an engine has died, find the requests that may have killed it.

All requests that the engine worked on fail at the same moment. Which one is the cause is decided from all of them
together, as they were when the first one failed, once it is known that the engine is gone: its port refuses, or its
health endpoint says so. A connection that breaks while the engine lives is no death, and neither is the end of an
engine whose worker drains.

Whoever gave a first token works, and so does whatever gives the same fields with success; who came last, alone or with
fields that this engine has not served yet, is to blame. Where nobody had just come, it is the only one that saw an
engine end before. docs/failure-rules.md has the rules in words.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Final

from weft_router.errors import DEATHS, EngineDiedError
from weft_router.http.upstream_request import UpstreamRequest

log = logging.getLogger(__name__)

BYSTANDER: Final = "engine-died"
"""It was well on its way: it goes on elsewhere, once."""
SUSPECT: Final = "engine-died-suspect"
"""One of several that may have done it: it is sent once more, after the others of its tenant."""
POISON: Final = "engine-died-poison"
"""It ended the engine, as far as anybody can tell: it is refused, and held back for a while."""
AGAIN: Final = "engine-died-again"
"""Two engines ended under it, as they did under others: it is not sent a third time."""
assert {BYSTANDER, SUSPECT, POISON, AGAIN} == DEATHS  # noqa: S101 - two layers name them

SETTLED_S: Final = 10.0
"""An answer in one piece, which shows no first token, is well on its way so long after it was sent."""
LOOK_AGAIN_S: Final = 0.1
"""A process that crashes may close its connections first."""
MOST_PROVEN: Final = 256
"""Combinations of unusual fields that are remembered as served."""
_SAID: Final = "engine-error"
_SUSPICIOUS: Final = frozenset({"disconnected", "cut-short", _SAID})


@dataclass(slots=True)
class InFlightRequest:
    """A request in an engine; ``fields`` are its unusual ones, ``deaths`` those of engines that it was in before."""

    tenant: str
    fields: frozenset[str]
    streams: bool
    deaths: int
    began: float
    strange: bool = False
    """Whether the engine has not served a request with these fields yet."""
    first: bool = False
    """Whether its first token came."""

    def settled(self, now: float) -> bool:
        """Return whether it was well on its way."""
        return self.first or (not self.streams and now - self.began >= SETTLED_S)


def classify(live: Mapping[UpstreamRequest, InFlightRequest], now: float) -> dict[UpstreamRequest, str]:
    """Return what becomes of each request of an engine that ended just now."""
    fresh = [leg for leg, serving in live.items() if not serving.settled(now)]
    found = {leg: AGAIN if serving.deaths else BYSTANDER for leg, serving in live.items()}
    found.update({leg: SUSPECT for leg in fresh if not live[leg].deaths})
    settled = [leg for leg in live if live[leg].settled(now)]
    if not fresh:
        again = [leg for leg in settled if live[leg].deaths]
        causes = _alone(again) or _alone([leg for leg in again if live[leg].strange])
    else:
        causes = []
        if not any(live[leg].strange and live[leg].deaths for leg in settled):
            causes = [leg for leg in fresh if live[leg].deaths]
        causes = causes or [leg for leg in fresh if live[leg].strange]
        if not causes and not any(live[leg].strange or live[leg].deaths for leg in settled):
            causes = _alone(fresh)
    found.update(dict.fromkeys(causes, POISON))
    return found


def _alone(legs: list[UpstreamRequest]) -> list[UpstreamRequest]:
    return legs if len(legs) == 1 else []


class DeathAnalysis:
    """One look at an engine whose requests began to fail, shared by all of them."""

    def __init__(
        self, live: dict[UpstreamRequest, InFlightRequest], ended: Awaitable[bool], on_death: Callable[[bool], None]
    ) -> None:
        self.live = live
        self.alive = False
        """Whether it was found that the engine lives."""
        self._on_death = on_death
        self._verdicts: dict[UpstreamRequest, str] = {}
        self.task = asyncio.ensure_future(self._run(ended, monotonic()))

    async def _run(self, ended: Awaitable[bool], now: float) -> None:
        if await ended:
            self._verdicts = classify(self.live, now)
            counts = dict.fromkeys(sorted(set(self._verdicts.values())), 0)
            for verdict in self._verdicts.values():
                counts[verdict] += 1
            log.error("engine_died", extra={"requests": counts})
            self._on_death(POISON in counts)
        else:
            self.alive = True

    async def verdict(self, leg: UpstreamRequest) -> str:
        """Return what becomes of the request; "" where the engine lives."""
        await asyncio.shield(self.task)
        return self._verdicts.get(leg, "")

    async def examine(self, leg: UpstreamRequest) -> None:
        """Raise EngineDiedError where the engine ended."""
        verdict = await self.verdict(leg)
        if verdict:
            raise EngineDiedError(verdict)


class PendingVerdict:
    """What is being found out about one request."""

    __slots__ = ("_analysis", "_leg")

    def __init__(self, analysis: DeathAnalysis, leg: UpstreamRequest) -> None:
        self._analysis = analysis
        self._leg = leg

    async def verdict(self) -> str:
        """Return what becomes of the request; "" where the engine lives."""
        return await self._analysis.verdict(self._leg)

    async def examine(self) -> None:
        """Raise EngineDiedError where the engine ended."""
        await self._analysis.examine(self._leg)


class DeathTracker:
    """The requests that one engine works on, and what ended it."""

    def __init__(self, ended: Callable[[bool], Awaitable[bool]], on_death: Callable[[], None]) -> None:
        """Ask ``ended`` whether the engine is gone, twice if so configured."""
        self._ended = ended
        self._on_death = on_death
        self._serving: dict[UpstreamRequest, InFlightRequest] = {}
        self._proven: dict[frozenset[str], None] = {}
        self._analysis: DeathAnalysis | None = None
        self.leaves = False
        """Whether the engine's worker drains: its end is no death."""
        self.unsolved = ""
        """What names the engine's last end, where none of its requests is to blame."""

    def enter(
        self, leg: UpstreamRequest, *, tenant: str, fields: frozenset[str], streams: bool = False, deaths: int = 0
    ) -> None:
        """Count in a request that is sent now."""
        serving = self._serving[leg] = InFlightRequest(tenant, fields, streams, deaths, leg.began)
        if fields:
            serving.strange = fields not in self._proven

    def first_token(self, leg: UpstreamRequest) -> None:
        """Note that a request gave its first token."""
        serving = self._serving.get(leg)
        if serving is not None:
            serving.first = True

    def served(self, leg: UpstreamRequest) -> None:
        """Note that a request was answered well: what else comes with its fields is no stranger."""
        serving = self._serving.get(leg)
        if serving is not None and serving.fields:
            if len(self._proven) >= MOST_PROVEN:
                self._proven.clear()
            self._proven[serving.fields] = None

    def leave(self, leg: UpstreamRequest) -> None:
        """Count out a request, whatever came of it."""
        self._serving.pop(leg, None)

    def failed(self, leg: UpstreamRequest, reason: str) -> PendingVerdict | None:
        """Return the verdict to wait for on a failed request; None where no engine death is suspected.

        A request that never reached its engine says nothing of it.
        """
        if leg not in self._serving or self.leaves:
            return None
        if reason not in _SUSPICIOUS and not (reason == "connect" and leg.resent):
            return None
        analysis = self._analysis
        if analysis is None or analysis.alive or leg not in analysis.live:
            twice = reason != _SAID
            analysis = self._analysis = DeathAnalysis(dict(self._serving), self._ended(twice), self._died)
        return PendingVerdict(analysis, leg)

    def _died(self, solved: bool) -> None:
        self.unsolved = "" if solved else os.urandom(8).hex()
        self._proven.clear()  # what comes next is another engine
        self._on_death()
