"""Watch one engine: its health, its progress, how full its KV cache is and how much runs."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Final

import orjson

from weft_router.background import guarded
from weft_router.engines.deaths import LOOK_AGAIN_S, DeathTracker
from weft_router.engines.load import VLLM, EngineLoad, Gauges
from weft_router.errors import UpstreamFailedError
from weft_router.http.header_lines import header_lines
from weft_router.http.pool import ConnectionPool
from weft_router.http.upstream_request import UpstreamRequest

log = logging.getLogger(__name__)

POLL_S = 1.0
HEALTH_TIMEOUT_S = 2.0
ASK_S = 30.0
MAX_PAGE = 16 * 2**20
MAX_VERSION = 64
"""Characters; it goes into every heartbeat."""
UNHEALTHY_AFTER = 2
"""One refused health call may be a full accept queue; two in a row are not."""

STRIKES = 3
"""One request may be at fault itself; three in a row that nothing else contradicts are the engine's."""
REST_S = 5.0
PROBE_S = 2.0
STALL_S = 3.0
"""An engine that shows no first token for so long, while requests wait longer than they should, hangs."""
SLACK = 3.0
"""A first token may take so many times the prediction."""
HANDSHAKE_S = 6.0
"""Engines that read each other's KV for the first time get to know each other before: 2 to 5 s with NIXL over TCP."""

STALLED = "stalled"
PROOF_HEADER = "X-Weft-Engine-Proof"
RANK_HEADER: Final = "X-Data-Parallel-Rank"
MOST_SESSIONS: Final = 65_536
"""Sessions whose rank is remembered; of more, the one that came first gets another rank."""


class Engine:
    """One engine behind a loopback URL.

    A health endpoint may lie: after STRIKES failed requests in a row, or when requests are overdue and none gets on,
    the engine is unhealthy for REST_S, if ``may_rest`` says that others can do its work. Then ``probe`` is sent, a
    request of one token: an answer brings the engine back, where one more failure is enough and a success forgets all.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        url: str,
        *,
        on_change: Callable[[], None],
        may_rest: Callable[[], bool] = lambda: False,
        keeps_resting: Callable[[], bool] = lambda: True,
        probe: tuple[str, bytes] | None = None,
        on_rest: Callable[[str], None] = lambda _: None,
        on_back: Callable[[], None] = lambda: None,
        gaps: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = monotonic,
        gauges: Gauges = VLLM,
        plugin_page: str | None = None,
        proof: str = "",
        ranks: int = 1,
    ) -> None:
        self.pool = pool
        self._gauges = gauges
        self._plugin_page = plugin_page
        self.proof = header_lines({PROOF_HEADER: proof}) if proof else ""
        """The header line that shows the engine's plug-in that a leg comes from this router."""
        self._ranks = ranks
        self._rank_of: OrderedDict[str, int] = OrderedDict()
        self._next_rank = 0
        self.plugin: bool | None = None
        """Whether the engine has the plug-in by which its streams carry KV handles; None while that is unknown."""
        self.version = ""
        """The engine's version, where a plug-in tells it; one that stays off on that version tells it, too."""
        self.origin = pool.origin(url)
        self._on_change = on_change
        self._may_rest = may_rest
        self._keeps_resting = keeps_resting
        self._probe = probe
        self._on_rest = on_rest
        self._on_back = on_back
        self._clock = clock
        self._strikes = 0
        self._resting = False
        self._rest_until = float("-inf")
        self._waiting: dict[UpstreamRequest, float] = {}
        self._progress = float("-inf")
        self._pauses = 0
        self._gaps = 0
        self._count_gaps = gaps
        self.deaths = DeathTracker(self.ended, self.lost)
        self._load_listeners: list[Callable[[EngineLoad], None]] = []
        self.healthy = False
        self.load = EngineLoad()
        self._failures = 0

    def lines_of(self, session: str) -> str:
        """Return the header lines of a leg of a session, beside its own: the proof, and the data-parallel rank.

        A session stays on one rank, which has its KV; new ones take turns. vLLM and SGLang take the header.
        """
        if self._ranks == 1:
            return self.proof
        rank = self._rank_of.get(session)
        if rank is None:
            if len(self._rank_of) >= MOST_SESSIONS:
                self._rank_of.popitem(last=False)
            rank = self._rank_of[session] = self._next_rank
            self._next_rank = (rank + 1) % self._ranks
        else:
            self._rank_of.move_to_end(session)  # one that goes on keeps its rank, however many came after it
        return f"{self.proof}{RANK_HEADER}: {rank}\r\n"

    def rank_of(self, session: str) -> int | None:
        """Return the data-parallel rank of a session, None where it has none yet."""
        return 0 if self._ranks == 1 else self._rank_of.get(session)

    @property
    def has_plugin_page(self) -> bool:
        """Return whether an engine of this kind could have the plug-in."""
        return self._plugin_page is not None

    def on_load(self, listener: Callable[[EngineLoad], None]) -> None:
        """Have a listener called with the engine's load, each time that it was read."""
        self._load_listeners.append(listener)

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await guarded(self.poll)
            await asyncio.sleep(POLL_S)

    async def poll(self) -> None:
        """Ask for health and load once."""
        self._look_for_stalls()
        ok = await self.alive()
        self._failures = 0 if ok else self._failures + 1
        healthy = ok or (self.healthy and self._failures < UNHEALTHY_AFTER)
        if self._resting and ok and await self._wakes():
            self._resting = False
            self._on_back()
        healthy = healthy and not self._resting
        if healthy != self.healthy:
            self.healthy = healthy
            log.log(logging.INFO if healthy else logging.ERROR, "engine_healthy" if healthy else "engine_unhealthy")
            self._on_change()
        if not ok:
            self.plugin = None  # what answers next may be another engine
            return
        await self.weigh()
        if self._plugin_page is not None and self.plugin is None:
            await self._look_for_plugin(self._plugin_page)

    async def _look_for_plugin(self, page: str) -> None:
        """Ask once after each start; an answer that says nothing either way is asked for again."""
        try:
            answer = await self.pool.call(
                UpstreamRequest(first_s=HEALTH_TIMEOUT_S), self.origin, page, limit=MAX_PAGE, method="GET", resend=True
            )
        except UpstreamFailedError:
            return
        if answer.status < 500:
            self.plugin = answer.status == 200
            self.version = version_of(answer.body)
            if not self.plugin:
                extra = {"effect": "its streams carry no KV handles", "engineVersion": self.version or None}
                log.warning("engine_without_plugin", extra=extra)

    @property
    def plugin_word(self) -> str:
        """Return what heartbeats say of the plug-in."""
        if self.plugin is None:
            return ""
        return "active" if self.plugin else "off" if self.version else "absent"

    async def weigh(self) -> bool:
        """Ask for the load now; False when the engine does not answer."""
        metrics = await self.metrics()
        if metrics is not None:
            self.load = self._gauges.read(metrics)
            for listener in self._load_listeners:
                listener(self.load)
        return metrics is not None

    async def alive(self) -> bool:
        """Ask the engine's health endpoint."""
        return await self.page("/health") is not None

    async def ended(self, twice: bool) -> bool:
        """Return whether the engine has ended: its port refuses connections, or its health endpoint says so.

        An engine that closes its connections may be about to go, so it is looked at ``twice``. One that does not
        answer in time hangs.
        """
        for look in range(1 + twice):
            if look:
                await asyncio.sleep(LOOK_AGAIN_S)
            try:
                answer = await self.pool.call(
                    UpstreamRequest(first_s=HEALTH_TIMEOUT_S),
                    self.origin,
                    "/health",
                    limit=MAX_PAGE,
                    method="GET",
                    resend=True,
                )
            except UpstreamFailedError as error:
                if error.reason == "connect":
                    return True
                if error.reason == "timeout":
                    return False
            else:
                if answer.status >= 500:
                    return True
        return False

    async def metrics(self) -> bytes | None:
        """Return the engine's metrics page, None when it does not answer."""
        return await self.page(self._gauges.page)

    async def ask(self, path: str, payload: bytes, *, first_s: float = ASK_S) -> tuple[int, bytes]:
        """Return the status and body of the engine's answer to a call; raise UpstreamFailedError without one.

        The answer begins within ``first_s``.
        """
        answer = await self.pool.call(
            UpstreamRequest(first_s=first_s), self.origin, path, payload, limit=MAX_PAGE, resend=True
        )
        return answer.status, answer.body

    async def page(self, path: str) -> bytes | None:
        """Return a page of the engine, None when it does not answer or has none."""
        try:
            answer = await self.pool.call(
                UpstreamRequest(first_s=HEALTH_TIMEOUT_S), self.origin, path, limit=MAX_PAGE, method="GET", resend=True
            )
        except UpstreamFailedError:
            return None
        return answer.body if answer.status == 200 else None

    def sent(self, leg: UpstreamRequest, expected_s: float, *, meets: bool = False) -> None:
        """Note a request that begins now, whose first token should be there in about ``expected_s``.

        ``meets``: it reads KV of an engine that this one may not know yet.
        """
        patience = max(STALL_S, SLACK * expected_s) + (HANDSHAKE_S if meets else 0.0)
        self._waiting[leg] = leg.began + patience

    def over(self, leg: UpstreamRequest, *, got_on: bool) -> None:
        """Note that a request waits no longer; ``got_on``: the engine gave its first token."""
        if self._waiting.pop(leg, None) is not None and got_on:
            self._progress = self._clock()

    def served(self) -> None:
        """Note that a request was answered."""
        self._strikes = 0
        self._progress = self._clock()

    def failed(self) -> None:
        """Note that a request failed here, or was not answered in time, though the engine took it."""
        self._strikes += 1
        if self._strikes >= STRIKES and self.healthy and self._may_rest():
            self._rest("failures")

    def _rest(self, reason: str) -> None:
        self._resting = True
        self._rest_until = self._clock() + REST_S
        self.healthy = False
        log.error("engine_rests", extra={"reason": reason, "failures": self._strikes})
        self._on_rest(reason)
        self._on_change()

    def pause_watch(self) -> None:
        """Look for no stalls until ``resume_watch``: the engine was given work beside which its streams wait."""
        self._pauses += 1

    def resume_watch(self) -> None:
        """Look for stalls again; no time before counts."""
        self._pauses -= 1
        self._progress = self._clock()

    def _look_for_stalls(self) -> None:
        """Rest an engine that hangs behind a green health check, and give what waits there to others."""
        if self._pauses:
            return
        now = self._clock()
        gaps = self._count_gaps()
        if gaps != self._gaps:
            self._gaps, self._progress = gaps, now
        overdue = [leg for leg, until in self._waiting.items() if until < now]
        if not overdue or self._progress >= now - STALL_S:
            return
        if self.healthy and self._may_rest():
            self._strikes = max(self._strikes, STRIKES - 1)
            self._rest("stalled")
        if self._resting:
            for leg in overdue:
                leg.fail(STALLED)

    async def _wakes(self) -> bool:
        """Return whether a resting engine may be used again: its time is over and it answers, or too many rest."""
        if not self._keeps_resting():
            return True
        if self._clock() < self._rest_until:
            return False
        if self._probe is None:
            return True
        path, body = self._probe
        try:
            answer = await self.pool.call(UpstreamRequest(first_s=PROBE_S), self.origin, path, body, limit=MAX_PAGE)
        except UpstreamFailedError:
            status = 599
        else:
            status = answer.status
        if status >= 500:
            self._rest_until = self._clock() + REST_S
        return status < 500

    def lost(self) -> None:
        """Take the engine for dead until it answers: a request just failed to reach it."""
        self._failures = UNHEALTHY_AFTER
        if self.healthy:
            self.healthy = False
            log.error("engine_unreachable")
            self._on_change()


def version_of(page: bytes) -> str:
    """Return the engine's version on a plug-in's page, "" where something else answered."""
    try:
        versions = orjson.loads(page)
    except orjson.JSONDecodeError:
        return ""
    version = versions.get("vllm") if isinstance(versions, dict) and "plugin" in versions else None
    return version[:MAX_VERSION] if isinstance(version, str) else ""
