"""What one request does for the other leg of its round, before and after it generates."""

import asyncio
from collections.abc import Mapping
from typing import Literal

from weft_core.authority import authority
from weft_mock.engine import Engine
from weft_mock.errors import ApiError
from weft_mock.kv_params import KvRequest, handle_json
from weft_mock.meetings import WRONG, Meeting, MeetingError, Offer
from weft_mock.sequence import Sequence
from weft_mock.transfer import ReadFailedError

Form = Literal["local", "export", "export_with_history", "import"]


class EngineLeg:
    """A request this engine serves alone; the other legs change what they need to."""

    form: Form = "local"

    async def begin(self, sequence: Sequence) -> None:
        """Prepare a sequence that is about to be queued.

        Raises:
            ApiError: the other leg is not there, or not as it should be.
        """

    async def end(self, sequence: Sequence) -> None:
        """Hand over what a sequence has made, before the last of the reply is sent.

        Raises:
            ApiError: nobody took it.
        """

    def drop(self, sequence: Sequence) -> None:
        """Let go: the request is over, well or not."""

    def handle(self, _sequence: Sequence) -> Mapping[str, object] | None:
        """Return the handle for the reply."""
        return None

    def dress(self, reply: dict[str, object], sequence: Sequence) -> None:
        """Add to a whole reply what the protocol wants in it."""


class HandleLeg(EngineLeg):
    """vLLM's legs: what the blocks are is said in kv_transfer_params, and the router carries it."""

    def __init__(self, kv: KvRequest, *, bidirectional: bool) -> None:
        """Do what the parameters say."""
        self._kv = kv
        self._importing = kv.form == "import"
        self._bidirectional = bidirectional
        self.form = "import" if self._importing else "export_with_history" if kv.remote else "export"

    async def begin(self, sequence: Sequence) -> None:
        """Name the source of the KV, and for whom it is kept afterwards."""
        sequence.source = self._kv.remote
        sequence.importing = self._importing
        # Only a bidirectional engine offers the KV of an imported and then decoded request for the next round.
        sequence.keep = ("decode" if self._bidirectional else None) if self._importing else "prefill"

    def handle(self, sequence: Sequence) -> Mapping[str, object] | None:
        """Return the handle of the blocks that stay."""
        if sequence.handle is None or sequence.keep not in ("prefill", "decode"):
            return None
        return handle_json(sequence.handle, holder=sequence.keep)


class LeakingLeg(EngineLeg):
    """A request whose blocks stock vLLM never frees."""

    async def begin(self, sequence: Sequence) -> None:
        """Mark the blocks."""
        sequence.keep = "leak"


class HoldingLeg(EngineLeg):
    """The prefill of a meeting: its KV waits for the reader with the same key.

    ``waits_for_reader``: nothing is computed before the reader is there. ``waits_for_read``: the reply ends when the
    KV was read.
    """

    form = "export"

    def __init__(
        self,
        engine: Engine,
        key: str,
        *,
        waits_for_reader: bool,
        waits_for_read: bool,
        keep_stopped: bool = True,
        reader_port: int | None = None,
    ) -> None:
        """Hold the meeting of this key once begun."""
        self._engine = engine
        self._key = key
        self._waits_for_reader = waits_for_reader
        self._waits_for_read = waits_for_read
        self._keep_stopped = keep_stopped
        self._reader_port = reader_port
        self._meeting: Meeting | None = None

    async def begin(self, sequence: Sequence) -> None:
        """Take the holder's place and, if so asked, wait for the reader."""
        engine = self._engine
        sequence.keep = "prefill"
        sequence.keep_stopped = self._keep_stopped
        try:
            meeting = engine.meetings.hold(self._key, wanted_port=self._reader_port)
        except MeetingError as error:
            if error.reason not in WRONG:
                raise self._failed(str(error)) from error
            engine.ledger.violations[error.reason] += 1
            raise ApiError(400, f"{self._key}: {error}") from error
        self._meeting = meeting
        engine.meetings.check(meeting)
        if meeting.over.done():
            raise self._failed(meeting.over.result())
        meeting.over.add_done_callback(lambda over: self._lost(sequence, over))
        if not self._waits_for_reader:
            return
        try:
            async with asyncio.timeout(engine.config.meeting_seconds):
                await meeting.reader_or_end()
        except TimeoutError as error:
            engine.meetings.end(meeting, "timeout")
            raise self._failed("no reader came in time") from error
        except MeetingError as error:
            raise self._failed(str(error)) from error

    def _lost(self, sequence: Sequence, over: "asyncio.Future[str]") -> None:
        if over.result() != "read":
            self._engine.fail_live(sequence, str(self._failed(over.result())))

    def _failed(self, why: str) -> ApiError:
        message = f"Prefill transfer failed for request rank=0 with exception KVTransferError({self._key}): {why}"
        return ApiError(500, message, kind="InternalServerError")

    async def end(self, sequence: Sequence) -> None:
        """Offer the blocks; wait until they are read if so asked."""
        engine, meeting, remote = self._engine, self._meeting, sequence.handle
        if meeting is None:
            return
        if remote is None:
            engine.meetings.end(meeting, "finished")
            return
        pin = engine.pins.find(remote.request_id)
        if pin is None:
            engine.meetings.end(meeting, "expired")
        else:
            pin.on_end = lambda how: engine.meetings.end(meeting, how)
            meeting.offered.set_result(Offer(remote, tuple(sequence.tokens[sequence.prompt_length :])))
        if self._waits_for_read:
            # Waiting for the future itself would let a cancel of this leg cancel it.
            await asyncio.wait({meeting.over})
            if meeting.over.result() != "read":
                raise self._failed(meeting.over.result())

    def drop(self, sequence: Sequence) -> None:
        """End the meeting if this leg ended before its offer, or before the read it had to wait for."""
        meeting = self._meeting
        if meeting is None or meeting.over.done():
            return
        offered = meeting.offered.done()
        if sequence.handle is not None and (self._waits_for_read or not offered):
            self._engine.release_own(sequence.handle.request_id)
        if not offered:
            self._engine.meetings.end(meeting, "holder_gone")


class JoiningLeg(EngineLeg):
    """The decode of a meeting: it reads the KV of the holder and sends the holder's first tokens as its own."""

    form = "import"

    def __init__(self, engine: Engine, where: tuple[str, int], key: str) -> None:
        """Go to this address once begun."""
        self._engine = engine
        self._where = where
        self._key = key
        self._patience = engine.config.meeting_seconds

    async def begin(self, sequence: Sequence) -> None:
        """Wait for the holder's offer."""
        engine = self._engine
        try:
            offer = await engine.side_channel.join(
                self._where, self._key, own_port=engine.api_port, patience=self._patience
            )
        except ReadFailedError as error:
            engine.ledger.failed_reads[error.reason] += 1
            raise self.refused(error) from error
        except asyncio.CancelledError:
            # The offer may be on its way: a closed connection alone would not tell the holder.
            engine.leave(self._where, self._key)
            raise
        reason = self.mistake(offer)
        if reason is not None:
            engine.release_unread(offer.remote)
            engine.ledger.violations["offer_mismatch"] += 1
            raise ApiError(400, reason)
        sequence.source = offer.remote
        sequence.importing = True
        sequence.given = offer.first_tokens

    def refused(self, error: ReadFailedError) -> ApiError:
        """Return what the client gets when there is no offer."""
        what = "handshake" if error.reason == "unreachable" else "transfer"
        message = f"Decode {what} failed for request rank=0 with exception KVTransferError({self._key}): {error}"
        return ApiError(500, f"{message} (bootstrap_addr {authority(*self._where)})", kind="InternalServerError")

    def mistake(self, _offer: Offer) -> str | None:
        """Return what is wrong with the request, now that the offer is known."""
        return None
