"""Watch one engine: is it healthy, does it get on with what it was sent, how full is its KV cache, how much runs."""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from weft_router.background import guarded
from weft_router.errors import LegFailedError
from weft_router.wire.leg import Leg
from weft_router.wire.pool import Pool

log = logging.getLogger(__name__)

POLL_S = 1.0
HEALTH_TIMEOUT_S = 2.0
ASK_S = 30.0
MAX_PAGE = 16 * 2**20
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

STALLED = "stalled"

_SAMPLE = re.compile(rb"^(vllm:[a-z_]+)(?:\{([^}]*)\})? ([0-9.eE+-]+)", re.MULTILINE)
_LABEL = re.compile(rb'(num_gpu_blocks|block_size)="(\d+)"')


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the engine says of itself; capacity is None when it does not tell."""

    kv_usage: float = 0.0
    running: int = 0
    waiting: int = 0
    capacity_tokens: int | None = None


class Engine:
    """One engine behind a loopback URL.

    A health endpoint may lie: after STRIKES failed requests in a row, or when requests are overdue and none gets on,
    the engine is unhealthy for REST_S, if ``may_rest`` says that others can do its work. Then ``probe`` is sent, a
    request of one token: an answer brings the engine back, where one more failure is enough and a success forgets all.
    """

    def __init__(
        self,
        pool: Pool,
        url: str,
        *,
        on_change: Callable[[], None],
        may_rest: Callable[[], bool] = lambda: False,
        keeps_resting: Callable[[], bool] = lambda: True,
        probe: tuple[str, bytes] | None = None,
        on_rest: Callable[[str], None] = lambda _: None,
        on_back: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.pool = pool
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
        self._waiting: dict[Leg, float] = {}
        self._progress = float("-inf")
        self._gaps = 0
        self.gaps: Callable[[], int] | None = None
        """Counts the tokens of live streams: an engine that goes on with these does not hang."""
        self.healthy = False
        self.load = EngineLoad()
        self._failures = 0

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
        if ok:
            metrics = await self.metrics()
            if metrics is not None:
                self.load = read_load(metrics)

    async def alive(self) -> bool:
        """Ask the engine's health endpoint."""
        return await self._get("/health") is not None

    async def metrics(self) -> bytes | None:
        """Return the engine's metrics page, None when it does not answer."""
        return await self._get("/metrics")

    async def ask(self, path: str, payload: bytes) -> tuple[int, bytes]:
        """Return the status and body of the engine's answer to a small question; raise LegFailedError without one."""
        answer = await self.pool.call(Leg(first_s=ASK_S), self.origin, path, payload, limit=MAX_PAGE, resend=True)
        return answer.status, answer.body

    async def _get(self, path: str) -> bytes | None:
        try:
            answer = await self.pool.call(
                Leg(first_s=HEALTH_TIMEOUT_S), self.origin, path, limit=MAX_PAGE, method="GET", resend=True
            )
        except LegFailedError:
            return None
        return answer.body if answer.status == 200 else None

    def sent(self, leg: Leg, expected_s: float) -> None:
        """Note a request whose first token should be there in about ``expected_s``."""
        self._waiting[leg] = self._clock() + max(STALL_S, SLACK * expected_s)

    def over(self, leg: Leg, *, got_on: bool) -> None:
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

    def _look_for_stalls(self) -> None:
        """Rest an engine that hangs behind a green health check, and give what waits there to others."""
        now = self._clock()
        gaps = self.gaps() if self.gaps is not None else 0
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
        """Tell whether a resting engine may be used again: its time is over and it answers, or too many rest."""
        if not self._keeps_resting():
            return True
        if self._clock() < self._rest_until:
            return False
        if self._probe is None:
            return True
        path, body = self._probe
        try:
            answer = await self.pool.call(Leg(first_s=PROBE_S), self.origin, path, body, limit=MAX_PAGE)
        except LegFailedError:
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


def read_load(page: bytes) -> EngineLoad:
    """Read vLLM's own gauges; several engine processes of one server are summed, their cache use averaged."""
    usage: list[float] = []
    counts = {b"vllm:num_requests_running": 0.0, b"vllm:num_requests_waiting": 0.0}
    capacity: int | None = None
    for name, labels, value in _SAMPLE.findall(page):
        if name == b"vllm:kv_cache_usage_perc":
            usage.append(float(value))
        elif name in counts:
            counts[name] += float(value)
        elif name == b"vllm:cache_config_info":
            found = {key: int(number) for key, number in _LABEL.findall(labels)}
            if len(found) == 2:
                capacity = (capacity or 0) + found[b"num_gpu_blocks"] * found[b"block_size"]
    return EngineLoad(
        kv_usage=sum(usage) / len(usage) if usage else 0.0,
        running=int(counts[b"vllm:num_requests_running"]),
        waiting=int(counts[b"vllm:num_requests_waiting"]),
        capacity_tokens=capacity,
    )
