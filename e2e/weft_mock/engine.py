"""Run the scheduler in real time: one task drives the steps, one task per read moves KV, one sweeps leases.

Times come from ``time.monotonic``: the event loop's own clock counts whole milliseconds under uvloop. Steps and reads
follow one another as they would if nobody had to wait for a CPU: each begins when the one before it should have ended,
or when its request came. So a late wake-up shortens the next wait, and no drift builds up.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import TYPE_CHECKING

from weft_core.cost import CostProfileError
from weft_core.parallelism import parallelism_of
from weft_mock.blocks import BlockPool
from weft_mock.config import EngineConfig
from weft_mock.faults import Faults
from weft_mock.kv_event_log import KvEventLog
from weft_mock.kv_params import RemoteBlocks
from weft_mock.ledger import Ledger
from weft_mock.meetings import Meetings
from weft_mock.metrics import Metrics
from weft_mock.outbox import Failure, Outbox
from weft_mock.pacing import Pacing
from weft_mock.pins import PinTable
from weft_mock.recording import Recording
from weft_mock.scheduler import Scheduler, SchedulerLimits
from weft_mock.sequence import Emission, Sequence
from weft_mock.tiers import Tiers
from weft_mock.transfer import Blocks, ReadFailedError, SideChannel

if TYPE_CHECKING:
    from weft_mock.kv_events import KvEventPublisher

log = logging.getLogger(__name__)

# An engine whose CPU was taken away catches up this much; what is lost beyond it is counted, not replayed in a burst.
_CATCH_UP_SECONDS = 0.25
# Sending the k-th token takes the event loop a few milliseconds before the process may die.
_LAST_WORDS_SECONDS = 0.05
_EXIT_STATUS_OF_FAULT = 70
_PROTOCOL = "weft-mock-1"


def compatibility(config: EngineConfig) -> str:
    """Return what two engines must have in common to read each other's KV."""
    text = f"{_PROTOCOL} {config.model} {config.profile.kv_bytes_per_token} {config.block_size}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def limits_of(config: EngineConfig) -> SchedulerLimits:
    """Return what the scheduler is bound by: the fork of Neuron has no prefix cache beside transfers, nor chunks."""
    apart = config.protocol == "neuron" and config.role != "both"
    parts = parallelism_of(config.degree)
    return SchedulerLimits(
        config.max_sequences,
        None if apart else config.chunk,
        config.recompute_threshold,
        config.priority_scheduling,
        parts.pp,
        parts.dp,
        prefix_cache=not apart,
        keeps_places=apart,
    )


class Engine:
    """One mock engine without its HTTP server."""

    def __init__(self, config: EngineConfig, *, die: Callable[[], None] | None = None) -> None:
        """Build the parts; ``die`` replaces the end of the process in tests."""
        self.config = config
        self.ledger = Ledger()
        self.faults = Faults()
        self.pacing = Pacing(
            config.profile,
            config.degree,
            config.time_scale,
            prefill_only=config.role == "prefill",
            shared_work=config.shared_work,
        )
        pool = BlockPool(config.capacity_tokens // config.block_size, block_size=config.block_size)
        self.pins = PinTable(pool, lease_seconds=config.lease_seconds, ttl_seconds=config.ttl_seconds)
        self.scheduler = Scheduler(
            pool=pool,
            pins=self.pins,
            pacing=self.pacing,
            ledger=self.ledger,
            limits=limits_of(config),
            tiers=Tiers(
                config.kv_tiers,
                block_size=config.block_size,
                kv_bytes_per_token=config.profile.kv_bytes_per_token,
                writes=config.kv_writes,
            ),
            describe=self._describe,
        )
        self._events = KvEventLog(
            block_size=config.block_size, wanted=config.kv_events is not None, disk=config.disk_events
        )
        self.publisher: KvEventPublisher | None = None
        """Publishes its KV events, where that is asked for."""
        pool.on_evict = self._events.evicted
        self.scheduler.on_cached = self._events.sealed
        self.scheduler.tiers.on_change = self._events.tier
        self.metrics = Metrics(config, ledger=self.ledger, scheduler=self.scheduler)
        self.side_channel = SideChannel(
            engine_id=config.engine_id, compatibility=compatibility(config), profile=config.profile
        )
        self.meetings = Meetings(ledger=self.ledger, release=self.release_own, changed=self.wake)
        self.recording = Recording()
        self._die = die or (lambda: os._exit(_EXIT_STATUS_OF_FAULT))
        self._outboxes: dict[Sequence, Outbox] = {}
        self._reads: dict[Sequence, asyncio.Task[None]] = {}
        self._heartbeats: dict[Sequence, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._tokens_since_fault: dict[Sequence, int] = {}
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._resumed = asyncio.Event()
        self._resumed.set()
        self.failed: asyncio.Future[None] | None = None
        self.side_channel_port = config.side_channel_port
        """The port handles name; the server sets it when the system chose the port, and that of the API."""
        self.api_port = config.port

    def _describe(self, request_id: str, sequence: Sequence) -> RemoteBlocks:
        pin = self.pins.get(request_id)
        return RemoteBlocks(
            engine_id=self.config.engine_id,
            request_id=request_id,
            host=self.config.side_channel_host,
            port=self.side_channel_port,
            block_ids=tuple(block.index for block in pin.blocks),
            tokens=len(pin.ids),
            degree=parallelism_of(self.config.degree).tp,
            expiry=pin.deadline if pin.holder == "decode" else None,
            cached_tokens=sequence.record.known,
        )

    async def start(self) -> None:
        """Start the tasks."""
        await self.side_channel.start()
        self.failed = asyncio.get_running_loop().create_future()
        if self.config.kv_events is not None:
            from weft_mock.kv_events import KvEventPublisher  # ZeroMQ, which most engines need not load

            self.publisher = KvEventPublisher(self.config.kv_events, ranks=parallelism_of(self.config.degree).dp)
            self.publisher.start()
        self._spawn(self._drive())
        self._spawn(self._sweep())

    async def stop(self) -> None:
        """End all tasks and connections; requests in flight fail."""
        for sequence in list(self._outboxes):
            self._fail(sequence, "the engine is shutting down", reason=None)
        tasks = [*self._tasks, *self._reads.values(), *self._heartbeats.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.publisher is not None:
            await self.publisher.stop()
        await self.side_channel.close()

    def die(self) -> None:
        """End the process; what was written has a moment to get out."""
        self._resumed.clear()
        asyncio.get_running_loop().call_later(_LAST_WORDS_SECONDS, self._die)

    def submit(self, sequence: Sequence, outbox: Outbox) -> None:
        """Queue a sequence whose tokens go to the outbox."""
        self._outboxes[sequence] = outbox
        self.ledger.recent.append(sequence.record)
        self.scheduler.add(sequence)
        if sequence.source is not None and sequence.source.expiry is None:
            beat = self.side_channel.keep_alive(sequence.source, every=self.config.lease_seconds / 3)
            self._heartbeats[sequence] = asyncio.create_task(beat)
        self.wake()

    def cancel(self, sequence: Sequence) -> None:
        """Abort a sequence and free its blocks now; one that has ended is left alone."""
        if self._outboxes.pop(sequence, None) is None:
            return
        read = self._reads.pop(sequence, None)
        if read is not None:
            read.cancel()
        if sequence.source is not None and (read is not None or sequence.admitted is None):
            self.release_unread(sequence.source)
        self.scheduler.drop(sequence)
        self.ledger.aborted += 1
        self._closed(sequence, "abort")

    def fail_live(self, sequence: Sequence, message: str) -> None:
        """End a sequence with an error, if it still runs, because its other leg is gone."""
        if sequence in self._outboxes:
            read = self._reads.pop(sequence, None)
            if read is not None:
                read.cancel()
            self._fail(sequence, message, reason=None)

    def release_own(self, request_id: str) -> None:
        """Free blocks kept here for a reader that will not come, unless it is reading."""
        pin = self.pins.find(request_id)
        if pin is not None and not pin.reading:
            self.pins.release(request_id)
            self.ledger.handles["released_unread"] += 1
            self.wake()

    def leave(self, where: tuple[str, int], key: str) -> None:
        """Tell the holder of a meeting that nobody will read what it offers."""
        self._spawn(self.side_channel.leave(where, key))

    def end_early(self, sequence: Sequence) -> None:
        """End a sequence because the text it made holds a stop string; as in vLLM it leaves no handle."""
        if self._outboxes.pop(sequence, None) is not None:
            self.scheduler.drop(sequence)
            self._closed(sequence, "stop")

    def release_unread(self, remote: RemoteBlocks) -> None:
        """Tell another engine that blocks it keeps for us will not be read."""
        self._spawn(self._release(remote))

    async def _release(self, remote: RemoteBlocks) -> None:
        own = remote.engine_id == self.config.engine_id
        if own or not await self.side_channel.done(remote):
            self.ledger.failed_releases += 1
            self.metrics.failed_notifications.inc()

    def wake(self) -> None:
        """Look again whether a waiting sequence fits, because blocks were freed or a fault ended."""
        self._wake.set()
        self._changed.set()

    def set_faults(self, faults: Faults) -> None:
        """Misbehave in this way from now on."""
        self.faults = faults
        self.pacing.slowdown = faults.slow
        self.scheduler.tiers.faults = faults
        self._tokens_since_fault.clear()
        if faults.hang:
            self._resumed.clear()
        else:
            self._resumed.set()
        log.info("faults_set", extra={"faults": repr(faults)})
        self.wake()

    async def resumed(self) -> None:
        """Wait until the engine does not hang."""
        await self._resumed.wait()

    @property
    def busy(self) -> bool:
        """Return whether requests run, or a prefill's blocks wait for the engine that is about to read them."""
        return bool(self._outboxes) or self.pins.leased or len(self.meetings) > 0

    async def idle(self) -> None:
        """Wait until the engine is not busy."""
        while self.busy:
            self._changed.clear()
            await self._changed.wait()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        # A task that dies would leave an engine that answers /health and nothing else: end it instead.
        log.error("engine_task_failed", exc_info=task.exception())
        if self.failed is not None and not self.failed.done():
            self.failed.set_exception(task.exception() or RuntimeError("a task failed"))

    async def _drive(self) -> None:
        scheduler, ledger = self.scheduler, self.ledger
        free = monotonic()  # when the last step was over, or should have been
        while True:
            await self._resumed.wait()
            now = monotonic()
            admission = scheduler.admit(now)
            for sequence in admission.fetch:
                began = max(free, sequence.ready, now - _CATCH_UP_SECONDS)
                self._reads[sequence] = asyncio.create_task(self._read(sequence, began))
            for remote in admission.release:
                self.release_unread(remote)
            for ends in admission.loads:
                asyncio.get_running_loop().call_later(max(0.0, ends - now), self._wake.set)
            step = scheduler.plan()
            if step is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            free = max(free, step.ready)
            behind = now - free
            if behind > _CATCH_UP_SECONDS:
                ledger.lost_seconds += behind - _CATCH_UP_SECONDS
                free = now - _CATCH_UP_SECONDS
            free += step.seconds
            await asyncio.sleep(max(0.0, free - now))
            if not self._resumed.is_set():
                await self._resumed.wait()
                free = monotonic()
            now = monotonic()
            ledger.worst_lateness_seconds = max(ledger.worst_lateness_seconds, now - free)
            for emission in scheduler.finish(step, now):
                self._deliver(emission, now)
            if self.publisher is not None and (events := self._events.take()):
                self.publisher.publish(events)

    def _deliver(self, emission: Emission, now: float) -> None:
        sequence = emission.sequence
        metrics = self.metrics
        metrics.generated.inc()
        if sequence.last_token is None:
            sequence.started = now
            metrics.first_token.observe(now - sequence.arrived)
            beat = self._heartbeats.pop(sequence, None)
            if beat is not None:
                beat.cancel()
        else:
            metrics.inter_token.observe(now - sequence.last_token)
        sequence.last_token = now
        outbox = self._outboxes.get(sequence)
        if emission.finish is not None:
            self._outboxes.pop(sequence, None)
            self._closed(sequence, emission.finish)
        if outbox is not None:
            outbox.put(emission)
        if self.faults.die_at_token is not None:
            self._count_towards_death(sequence, self.faults.die_at_token)

    def _count_towards_death(self, sequence: Sequence, at: int) -> None:
        count = self._tokens_since_fault.get(sequence, 0) + 1
        self._tokens_since_fault[sequence] = count
        if count == at:
            self.die()

    def _closed(self, sequence: Sequence, reason: str) -> None:
        beat = self._heartbeats.pop(sequence, None)
        if beat is not None:
            beat.cancel()
        sequence.record.handle = sequence.handle is not None
        self.ledger.close(sequence.record, reason)
        self.metrics.ended(sequence, now=monotonic(), reason=reason)
        self.wake()

    def _fail(self, sequence: Sequence, message: str, *, reason: str | None) -> None:
        outbox = self._outboxes.pop(sequence, None)
        self.scheduler.drop(sequence)
        if reason is not None:
            self.ledger.failed_reads[reason] += 1
            self.metrics.failed_transfers.inc()
            if reason == "expired":
                self.metrics.expired_requests.inc()
        self._closed(sequence, "error")
        if outbox is not None:
            outbox.put(Failure(sequence, message))

    async def _read(self, sequence: Sequence, began: float) -> None:
        remote = sequence.source
        if remote is None:
            return
        try:
            tokens, ended = await self._read_blocks(sequence, remote, began)
        except ReadFailedError as error:
            log.warning(
                "kv_read_failed",
                extra={"request": sequence.request_id, "remote_engine": remote.engine_id, "reason": error.reason},
            )
            self._reads.pop(sequence, None)
            self._fail(sequence, f"KV load failed ({error.reason}): {error}", reason=error.reason)
            if error.reason in ("history_mismatch", "length_mismatch", "expired", "no_transfer_cost"):
                self.release_unread(remote)
            return
        self._reads.pop(sequence, None)
        self._spawn(self._release(remote))
        for emission in self.scheduler.fetched(sequence, tokens, ended):
            self._deliver(emission, ended)
        self.wake()

    async def _read_blocks(self, sequence: Sequence, remote: RemoteBlocks, began: float) -> tuple[int, float]:
        """Read, verify and spend the time of the transfer; return how many of the prompt's tokens have KV, and when."""
        size = self.config.block_size
        if remote.engine_id == self.config.engine_id:
            raise ReadFailedError("own_blocks", "the handle names this very engine; a prefix hit needs no handle")
        peer = await self.side_channel.handshake(remote)
        tokens = min(remote.tokens, sequence.prompt_length)
        if sequence.importing and remote.tokens != sequence.prompt_length:
            raise ReadFailedError(
                "length_mismatch",
                f"the handle covers {remote.tokens} tokens and the prompt has {sequence.prompt_length}: "
                "both legs must get the same prompt",
            )
        skip = sequence.computed // size
        moved = max(0, tokens - sequence.computed)
        try:
            seconds = self.pacing.transfer(
                moved,
                source=peer.profile,
                source_degree=peer.degree,
                same_node=bool(peer.node) and peer.node == self.config.node,
            )
        except CostProfileError as error:
            raise ReadFailedError("no_transfer_cost", str(error)) from error
        if remote.expiry is not None and remote.expiry - peer.clock_offset < monotonic() + seconds:
            raise ReadFailedError("expired", "the handle's time is up, or would be before the read ends")
        blocks = await self.side_channel.read(remote, skip_blocks=skip, tokens=tokens)
        _verify(sequence, blocks, skip=skip, tokens=tokens, block_size=size)
        ended = max(began + seconds, monotonic())
        await asyncio.sleep(max(0.0, ended - monotonic()))
        size_in_bytes = moved * self.config.profile.kv_bytes_per_token
        direction = "prefill_to_decode" if sequence.importing else "decode_to_prefill"
        self.ledger.kv_bytes[direction, "received"] += size_in_bytes
        self.metrics.transfer_seconds.observe(monotonic() - began)
        self.metrics.transfer_bytes.observe(size_in_bytes)
        return tokens, ended

    async def _sweep(self) -> None:
        every = min(1.0, self.config.lease_seconds / 4, self.config.ttl_seconds / 4)
        while True:
            await asyncio.sleep(every)
            for pin in self.pins.expire(monotonic()):
                self.ledger.handles["expired_while_read" if pin.reading else "expired"] += 1
                self.metrics.expired_requests.inc()
                self.wake()


def _verify(sequence: Sequence, blocks: Blocks, *, skip: int, tokens: int, block_size: int) -> None:
    """Prove that blocks were computed from this very prompt.

    Raises:
        ReadFailedError: they were not; vLLM would go on and answer wrongly.
    """
    full = tokens // block_size
    if blocks.states != sequence.states[skip:full] or blocks.tail_ids != sequence.tokens[full * block_size : tokens]:
        raise ReadFailedError(
            "history_mismatch", "the KV read belongs to another history than this prompt's; vLLM would answer wrongly"
        )
