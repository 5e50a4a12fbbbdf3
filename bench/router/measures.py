"""Measure one running router: each function returns figures of one round."""

import resource
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from bench.router import load
from bench.router.compiled import BenchError
from bench.router.contenders import Running
from bench.router.engines import Engines
from bench.router.load import Load, Outcome
from bench.router.processes import Cores, get

STREAMS, HELD = 2000, 5000
FILES_PER_STREAM = 3
"""What a router may hold for a stream: the client's connection and one to each engine."""
LATENCY_RATE = 200.0
_FALLBACKS = ("predictions-wrong", "profile-incomplete", "no-prefill-worker")
"""Reasons of decisions that the policy did not take by its own rule."""
PACED_STREAMS, GAP_S = 200, 0.02
BEGINNING_S = 10.0
"""How long 200 streams may take to begin."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How long a load is measured and warmed up, in seconds, and whether all of it streams and names no session."""

    seconds: float
    warm_s: float
    streams_only: bool = False

    @property
    def requests(self) -> Load:
        """Return the plain load: requests of one round in a closed loop."""
        streams = self.streams_only
        return Load(seconds=self.seconds, warm_s=self.warm_s, stream=streams, session=not streams)


def requests(router: Running, extent: Extent) -> dict[str, float]:
    """Measure requests of one round, each of a new session: with a header that names it, and without."""
    router.engines.reset()
    sent = _send(router, extent.requests)
    found = {
        "requests_core": sent.per_core(sent.requests),
        "requests": sent.requests / sent.seconds,
        "request_us": sent.each_us(sent.requests),
        "both_legs": _both_legs(router.engines),
        "busy": sent.busy,
    }
    if router.contender.key:
        _check_decisions(router.port)
    if not extent.streams_only:
        unnamed = _send(router, replace(extent.requests, session=False, warm_s=extent.warm_s / 2))
        found["unnamed_us"] = unnamed.each_us(unnamed.requests)
    return found


def sessions(router: Running, extent: Extent) -> dict[str, float]:
    """Measure growing sessions of four rounds, and how many of them took both legs."""
    router.engines.reset()
    found = _send(router, replace(extent.requests, rounds=4))
    return {"sessions_core": found.per_core(found.requests), "sessions_both": _both_legs(router.engines)}


def long_prompts(router: Running, extent: Extent) -> dict[str, float]:
    """Measure requests of one round with a prompt of 65 KB."""
    found = _send(router, replace(extent.requests, prompt=65_000, connections=32))
    return {"long_core": found.per_core(found.requests), "long_us": found.each_us(found.requests)}


def latency(router: Running, extent: Extent) -> dict[str, float]:
    """Measure what the router adds at a moderate rate to calling both engines directly, one after the other."""
    moderate = replace(extent.requests, rate=LATENCY_RATE, connections=64, seconds=extent.seconds * 2)
    # Between client and engine, too, the wire leads from core to core, as it leads between machines.
    across = Cores(router.cores.router, router.cores.router)
    straight = load.run(
        replace(moderate, prefill_port=router.engines.prefill[0]), router.engines.decode[0], cores=across
    )
    routed = _send(router, moderate)
    added = [(through - without) / 1e3 for through, without in zip(routed.latency_us, straight.latency_us, strict=True)]
    return {
        "added_p50_ms": added[0],
        "added_p99_ms": added[2],
        "direct_p50_us": straight.latency_us[0],
        "direct_p99_us": straight.latency_us[2],
    }


def eager_streams(router: Running, extent: Extent) -> dict[str, float]:
    """Measure streams whose events come as fast as they are read."""
    found = _send(router, replace(extent.requests, stream=True, tokens=1000))
    return {"events_core": found.per_core(found.events)}


def paced_streams(router: Running, extent: Extent) -> dict[str, float]:
    """Measure streams of 50 events a second each."""
    tokens = round((extent.warm_s + extent.seconds + BEGINNING_S) / GAP_S)
    paced = replace(extent.requests, stream=True, tokens=tokens, connections=PACED_STREAMS, hold=True)
    found = _send(router, paced, gap_s=GAP_S)
    return {"event_us": found.each_us(found.events)}


def memory(router: Running, extent: Extent) -> dict[str, float]:
    """Measure a process's memory while it holds 2,000 streams; it has served only these."""
    return {"rss_mb": _hold(router, STREAMS, extent).rss_mb}


def many_streams(router: Running, extent: Extent) -> dict[str, float]:
    """Hold 5,000 streams in one process and see all of them through."""
    found = _hold(router, HELD, extent)
    return {"held": found.peak, "held_rss_mb": found.rss_mb}


def _hold(router: Running, streams: int, extent: Extent) -> Outcome:
    """Hold so many streams of an event a second, all at once, and wait for their ends."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if allowed < streams * FILES_PER_STREAM + 500:
        raise BenchError(
            f"{streams} streams need {streams * FILES_PER_STREAM + 500} open files, {allowed} are allowed here"
        )
    seconds = min(extent.seconds, 2)
    held = replace(extent.requests, connections=streams, tokens=40, warm_s=0, seconds=seconds, stream=True, hold=True)
    return _send(router, held, gap_s=1.0)


MEASURES: dict[str, Callable[[Running, Extent], dict[str, float]]] = {
    "memory": memory,
    "requests": requests,
    "sessions": sessions,
    "long": long_prompts,
    "latency": latency,
    "events": eager_streams,
    "paced": paced_streams,
    "streams": many_streams,
}
"""In this order: memory first, while the process has served nothing else."""


def wide(router: Running, extent: Extent) -> dict[str, float]:
    """Measure a router in front of 64 workers: its own clock's mean decision, and the CPU of a request."""
    before = _decisions(router.port)
    found = _send(router, extent.requests)
    after = _decisions(router.port)
    decided = after[1] - before[1]
    if not decided:
        raise BenchError("the router's metrics count no decision")
    return {"decision_us": (after[0] - before[0]) / decided * 1e6, "wide_us": found.each_us(found.requests)}


def _decisions(port: int) -> tuple[float, float]:
    """Return the seconds that decisions took so far, and their number."""
    page = get(port, "/metrics")
    if page is None:
        raise BenchError("the router gives no metrics")
    return sample(page, "weft_router_decision_seconds_sum"), sample(page, "weft_router_decision_seconds_count")


def _check_decisions(port: int) -> None:
    """Check that the policy decided by what it predicts.

    Raises:
        BenchError: it fell back on another rule.
    """
    page = get(port, "/metrics") or ""
    label = "weft_router_decisions_total{"
    other = [
        line for line in page.splitlines() if line.startswith(label) and any(f'"{one}"' in line for one in _FALLBACKS)
    ]
    if label not in page or other:
        raise BenchError(
            f"the policy did not decide by its predictions: {'; '.join(other) or 'no decision is counted'}"
        )


def sample(page: str, name: str) -> float:
    """Return the sum of a metric's samples over all its labels."""
    found = [line[len(name) :] for line in page.splitlines() if line.startswith((name + " ", name + "{"))]
    return sum(float(rest.rpartition("} ")[2].split()[0]) for rest in (one.split(" # ")[0] for one in found))


def cost(port: int, pids: list[int], extent: Extent, *, cores: Cores, key: str | None) -> float:
    """Return the CPU of a request in microseconds, summed over processes."""
    found = load.run(extent.requests, port, cores=cores, pids=pids, key=key)
    return found.each_us(found.requests)


def _send(router: Running, what: Load, *, gap_s: float = 0.0) -> Outcome:
    """Send a load; streams have an event every ``gap_s`` until the measurement is over, then the rest at once."""
    router.process.alive()
    hurry = partial(router.engines.pace, 0.0)
    router.engines.pace(gap_s)
    try:
        return load.run(what, router.port, cores=router.cores, pids=router.pids, key=router.contender.key, at_end=hurry)
    finally:
        hurry()


def _both_legs(engines: Engines) -> float:
    """Return which share of the rounds had a prefill and a decode call, in percent."""
    seen = engines.ledger()
    both = seen["remote"] + seen["bootstrapped"]
    return 100.0 * both / max(both + seen["local"], 1)
