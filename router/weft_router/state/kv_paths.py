"""Know which engines of the other role this worker's can hand KV over with: by their side channel, and by doing it.

A port that a network policy or a firewall closes costs every round that would read KV over it a timeout in the engine,
though engines and sidecars are healthy. The sidecar is in the engine's pod, so what it reaches its engine does: the
side channel, where engines meet, is tried from here. Ports of the data are the engines' own, so a decode worker proves
each path by carrying a little KV over it: after the start of either end, and from time to time.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Literal
from urllib.parse import urlsplit

from weft_core.heartbeat import WorkerRecord
from weft_router.background import guarded

log = logging.getLogger(__name__)

CHECK_EVERY_S = 1.0
CONNECT_S = 2.0
PROVEN_AGAIN_S = 60.0
"""A proven path is proven again so often, by the little that shows that KV still goes, where nothing else is said.

An open path is tried again twice as often, and one over which KV did not go is proven again: policies change.
"""
UNPROVEN_AGAIN_S = 5.0
"""Where an engine had no time for a proof; sooner where proven paths are proven again sooner."""
CLOSED_AFTER = 3
"""One refused connection may be an engine that is just starting; three in a row, a second apart, are not."""
FAULTY_AFTER = 2
"""Proofs that failed in a row."""
AT_ONCE = 16
MOST_NAMED = 8
"""A heartbeat names so many: it is written every second."""

Fault = Literal["side-channel", "data-port", "transfer", "transport"]
"""Why nothing may go over a path: where engines meet is not reached, or where data goes, KV did not come for another
reason, or it came over TCP where RDMA is expected."""
Connect = Callable[[str, int], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Proof:
    """What came of carrying KV over a path; figures are None where other transfers mixed with it."""

    fault: Fault | None = None
    transport: str = ""
    bytes_per_s: float | None = None
    latency_s: float | None = None

    @property
    def measured(self) -> bool:
        """Return whether it has all figures."""
        return bool(self.transport) and self.bytes_per_s is not None and self.latency_s is not None


Prove = Callable[[WorkerRecord, bool], Awaitable[Proof | None]]
"""Carry KV from that worker's engine to this one's, enough of it for figures where asked; None: there was no time."""


@dataclass(slots=True)
class _Path:
    instance_id: str
    failures: int = 0
    open: bool = False
    tried_at: float = float("-inf")
    proof: Proof | None = None
    """The last one that found no fault."""
    fault: Fault | None = None
    """What the last proof found."""
    faults: int = 0
    due_at: float = float("-inf")

    @property
    def closed(self) -> Fault | None:
        """Return why nothing may go this way; None where something may."""
        if self.failures >= CLOSED_AFTER:
            return "side-channel"
        return self.fault if self.faults >= FAULTY_AFTER else None


class KvPaths:
    """The paths from this worker's pod to those that ``others`` gives; without ``port`` none is checked.

    ``serves`` tells whether the engine here does: one that ended comes back without what it knew of others, so all is
    proven anew. ``proves`` tells whether this worker decodes: only then it reads what others prefill.
    """

    def __init__(
        self,
        port: int,
        others: Callable[[], Iterable[WorkerRecord]],
        *,
        connect: Connect | None = None,
        serves: Callable[[], bool] = lambda: True,
        proves: Callable[[], bool] = lambda: True,
        proven_again_s: float = PROVEN_AGAIN_S,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.port = port
        self._proven_again_s = proven_again_s
        self._again_s = proven_again_s / 2
        self._unproven_again_s = min(UNPROVEN_AGAIN_S, self._again_s)
        self._prove: Prove | None = None
        self._others = others
        self._connect = connect or reaches
        self._serves = serves
        self._proves = proves
        self._clock = clock
        self._paths: dict[str, _Path] = {}
        self._closed_listeners: list[Callable[[frozenset[str]], None]] = []
        self.closed: frozenset[str] = frozenset()
        """The workers that KV cannot be handed over with; the same object as long as nothing changed."""
        self.rates: dict[str, float] = {}
        """Bytes per second over the paths from other workers, where they were measured."""

    @property
    def open(self) -> int:
        """Return how many workers' side channels were reached; -1 where this is not checked."""
        return sum(path.open for path in self._paths.values()) if self.port else -1

    def describe(self, record: WorkerRecord) -> WorkerRecord:
        """Add to a heartbeat what is known of the paths: the worst of what was measured stands for all."""
        proofs = [path.proof for path in self._paths.values() if path.proof is not None and path.closed is None]
        rates = [proof.bytes_per_s for proof in proofs if proof.bytes_per_s is not None]
        latencies = [proof.latency_s for proof in proofs if proof.latency_s is not None]
        return replace(
            record,
            kv_open=self.open,
            kv_proven=len(proofs) if self.port and self._prove is not None and self._proves() else -1,
            kv_faults=self.named(),
            kv_transports=tuple(sorted({proof.transport for proof in proofs if proof.transport})),
            kv_bytes_per_s=min(rates, default=None),
            kv_latency=max(latencies, default=None),
        )

    def named(self) -> tuple[tuple[str, str], ...]:
        """Return some of the closed ones, by name, and why."""
        faults = ((name, path.closed) for name, path in sorted(self._paths.items()))
        return tuple((name, fault) for name, fault in faults if fault is not None)[:MOST_NAMED]

    def on_closed(self, listener: Callable[[frozenset[str]], None]) -> None:
        """Have a listener called with the workers that KV has just ceased to come from."""
        self._closed_listeners.append(listener)

    async def run(self, prove: Prove | None = None) -> None:
        """Try side channels, and ``prove`` paths, until cancelled; do nothing at all without a port."""
        self._prove = prove
        if self.port:
            await asyncio.gather(self._repeat(self.check_all), self._repeat(self.prove_next))

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await guarded(work)
            await asyncio.sleep(CHECK_EVERY_S)

    async def check_all(self) -> None:
        """Try the side channels that are due."""
        records = {record.worker: record for record in self._others()}
        now = self._clock()
        for name in self._paths.keys() - records.keys():
            del self._paths[name]
        due = []
        for name, record in records.items():
            path = self._paths.get(name)
            if path is None or path.instance_id != record.instance_id:
                path = self._paths[name] = _Path(record.instance_id)
            if not path.open or path.failures or now - path.tried_at >= self._again_s:
                due.append((record, path))
        for first in range(0, len(due), AT_ONCE):
            await asyncio.gather(*(self._try(record, path, now) for record, path in due[first : first + AT_ONCE]))
        self._note()

    async def prove_next(self) -> None:
        """Prove the paths that are due, one by one: what two carry at once would be in each other's figures."""
        if self._prove is None or not self._proves():
            return
        if not self._serves():
            for path in self._paths.values():
                path.proof, path.due_at = None, float("-inf")
            return
        for record in [record for record in self._others() if record.has_duty("prefill")]:
            due = self._paths.get(record.worker)
            if due is None or not due.open or due.failures or self._clock() < due.due_at:
                continue
            found = await self._prove(record, due.proof is None or not due.proof.measured or due.faults > 0)
            self._proven(record.worker, due, found)

    def _proven(self, name: str, path: _Path, found: Proof | None) -> None:
        """Note what a proof found."""
        now = self._clock()
        if found is None or not self._serves():
            path.due_at = now + self._unproven_again_s
            return
        path.fault = found.fault
        if found.fault is not None:
            path.faults += 1
            path.due_at = now + (self._again_s if path.faults >= FAULTY_AFTER else 0.0)
            extra = {"worker": name, "fault": found.fault, "transport": found.transport or None}
            log.warning("kv_path_faulty", extra=extra)
        else:
            was = path.proof or Proof()
            path.faults = 0
            path.proof = replace(
                found,
                transport=found.transport or was.transport,
                bytes_per_s=was.bytes_per_s if found.bytes_per_s is None else found.bytes_per_s,
                latency_s=was.latency_s if found.latency_s is None else found.latency_s,
            )
            path.due_at = now + (self._proven_again_s if path.proof.measured else self._again_s)
            if path.proof != was:
                proof = path.proof
                figures = {"bytesPerSecond": proof.bytes_per_s, "latency": proof.latency_s}
                log.info("kv_path_proven", extra={"worker": name, "transport": proof.transport, **figures})
        self._note()

    def _note(self) -> None:
        """Bring ``closed`` and ``rates`` up to date, and say what changed."""
        proofs = ((name, path.proof) for name, path in self._paths.items() if path.proof is not None)
        self.rates = {name: proof.bytes_per_s for name, proof in proofs if proof.bytes_per_s is not None}
        closed = frozenset(name for name, path in self._paths.items() if path.closed)
        if closed != self.closed:
            for name in sorted(closed - self.closed):
                log.error("kv_path_closed", extra={"worker": name, "fault": self._paths[name].closed})
            for name in sorted(self.closed - closed):
                log.info("kv_path_not_closed", extra={"worker": name})
            new, self.closed = closed - self.closed, closed
            if new:
                for listener in self._closed_listeners:
                    listener(new)

    async def _try(self, record: WorkerRecord, path: _Path, now: float) -> None:
        path.tried_at = now
        reached = await self._connect(urlsplit(record.url).hostname or "", self.port)
        if reached and path.failures >= CLOSED_AFTER:
            path.due_at = float("-inf")
        path.failures = 0 if reached else path.failures + 1
        path.open = reached or (path.open and path.failures < CLOSED_AFTER)


async def reaches(host: str, port: int) -> bool:
    """Return whether a connection to the port is taken; it is closed at once, and nothing is sent."""
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:  # TimeoutError is one
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
