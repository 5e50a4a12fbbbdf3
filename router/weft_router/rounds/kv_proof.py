"""Prove that KV can be transferred from a prefill worker's engine to this one's, and back in bidirectional services.

The router sends a synthetic round: a prefill leg, a decode leg that reads its KV, and in a bidirectional service a
prefill leg that reads the decode leg's KV. The answers are discarded. Each leg has its own cache salt, so it cannot use
an engine's prefix cache and must read. Bytes and times are the reading engine's counters; the transport follows from
the kernel's network counters.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from time import monotonic
from urllib.parse import urlsplit

import orjson

from weft_core.heartbeat import WorkerRecord
from weft_core.policies.snapshot import PrefillTask
from weft_router.engines.adapter import REQUEST_ID, Call
from weft_router.engines.handles import KvHandle, points
from weft_router.engines.transfers import PulledKv, ReceivedBytes, read_pulled_kv, received_bytes, unanswered_ports
from weft_router.engines.vllm import KEEP
from weft_router.engines.vllm_prefill import transfer_params
from weft_router.errors import UpstreamFailedError
from weft_router.http.header_lines import header_lines
from weft_router.http.upstream_request import BufferedResponse, UpstreamRequest
from weft_router.openai.body import Json
from weft_router.openai.reply import read_counts
from weft_router.sessions.kv_releaser import KvReleaser
from weft_router.state.kv_paths import Fault, Proof
from weft_router.telemetry.instruments import Counter
from weft_router.workers.prefill_client import PrefillClient, PrefillResponse
from weft_router.workers.scheduling_priority import DEFAULT_PRIORITY
from weft_router.workers.worker import Worker

log = logging.getLogger(__name__)

LEAST = 8
"""Tokens of the transfer that measures the latency: one block."""
FEW = 96
"""Tokens of the transfer that proves the path; below 64 tokens of history engines recompute instead of reading."""
MANY = 2048
"""Tokens of the transfer that measures the bandwidth, at most half the model's context."""
BACK = 32
"""Tokens that the prefill of the way back adds to the history."""
READ_S = 20.0
"""Timeout of a leg; the first transfer between two engines takes 2 to 10 s."""
ALONE_S = 10.0
"""Timeout of an engine's response to a few tokens without a transfer."""
COUNTED_S = 3.0
"""How long a transfer may be missing in the engine's counters, which it updates in a later step."""
LOOK_S = 0.05
SLOW_S = 2.0
"""Interval of checks for unanswered connections; the kernel retries after 1, 3 and 7 s."""
SILENT_LOOKS = 4
"""Number of successive checks in which a port is unanswered before a read over it is given up."""
_TOKEN = 5
"""The token id of which prompts consist; every vocabulary has it."""
_PATH = "/v1/completions"
_NOTHING = PrefillTask(0, 0)
"""For the prefill worker's queue: a proof is neither queued nor counted."""
_REPLY_BYTES = 8 * 2**20
_LOOPBACK = ("127.", "localhost", "::1")


class InconclusiveProofError(Exception):
    """Report that a proof has no result: an engine did not respond, or restarted."""


class KvProof:
    """Runs the KV path proofs of one decode worker."""

    def __init__(
        self, worker: Worker, *, prefill_client: PrefillClient, releaser: KvReleaser, outcomes: Counter,
        network: Callable[[bool], ReceivedBytes] = lambda loopback: received_bytes(loopback=loopback),
        waits: Callable[[str], frozenset[int]] = unanswered_ports,
    ) -> None:  # fmt: skip
        """Prove for one worker; requests to prefill workers go by ``prefill_client``, ``outcomes`` counts results."""
        self._worker = worker
        self._prefill_client = prefill_client
        self._releaser = releaser
        self._outcomes = outcomes
        self._network = network
        self._unanswered = waits
        config = worker.settings.config
        self._model = config.model.name
        self._back = config.engine.bidirectional
        self._many = max(LEAST, min(MANY, config.model.max_model_len // 2))

    async def __call__(self, record: WorkerRecord, figures: bool) -> Proof | None:
        """Prove the path from a prefill worker's engine; with ``figures``, also measure it. None: no result."""
        try:
            proof = await (self._measure(record) if figures else self._try(record))
        except InconclusiveProofError as error:
            log.info("kv_path_unproven", extra={"worker": record.worker, "error": str(error)})
            self._outcomes.labels("unproven").inc()
            return None
        self._outcomes.labels(proof.fault or "proven").inc()
        return proof

    async def _try(self, record: WorkerRecord) -> Proof:
        carried = await self._carry(record, FEW, back=self._back)
        return Proof(carried) if isinstance(carried, str) else Proof()

    async def _measure(self, record: WorkerRecord) -> Proof:
        """Transfer LEAST twice, because the first transfer sets up the connection, and then MANY."""
        least = await self._carry(record, LEAST)
        if not isinstance(least, str):
            least = await self._carry(record, LEAST)
        if isinstance(least, str):
            return Proof(least)
        loopback = (urlsplit(record.url).hostname or "").startswith(_LOOPBACK)
        before = self._network(loopback)
        much = await self._carry(record, self._many)
        after = self._network(loopback)
        if isinstance(much, str):
            return Proof(much)
        if self._back and isinstance(again := await self._carry(record, FEW, back=True), str):
            return Proof(again)
        if least.tokens != LEAST or much.tokens != self._many or least.seconds <= 0 or much.seconds <= 0:
            return Proof()  # rounds read at the same time
        transport = after.carrier(before, much.size)
        wrong = self._worker.settings.kv_transport == "rdma" and transport == "tcp"
        return Proof(
            fault="transport" if wrong else None,
            transport=transport,
            bytes_per_s=much.size / much.seconds,
            latency_s=least.seconds / least.transfers,
        )

    async def _carry(self, record: WorkerRecord, tokens: int, *, back: bool = False) -> PulledKv | Fault:
        """Carry a prompt's KV here, and ``back`` again; return what was counted here, or why it did not come.

        Raises:
            InconclusiveProofError: that says nothing of the path.
        """
        before = await self._counted()
        answer = await self._ask(record, tokens, KEEP)
        params = transfer_params(_handle(answer.body)) if answer.status == 200 else None
        if params is None:
            raise InconclusiveProofError(f"the prefill engine gave no KV (status {answer.status})")
        whole = await self._read(tokens, params)
        if not isinstance(whole, BufferedResponse):
            self._releaser.release_prefill(params)
            return whole
        found = (await self._counted(more_than=before)).since(before)
        if found.size <= 0:  # it was computed here, which an engine may be told to do where a read fails
            return "transfer"
        handle = _handle(whole.body)
        if handle is None or not points(handle):
            return found
        if not back:
            self._releaser.release_handle(KvHandle(handle, tokens, monotonic() + ALONE_S, None), by=record)
            return found
        answer = await self._ask(
            record, tokens + BACK, {**handle, "do_remote_decode": True, "do_remote_prefill": False}
        )
        if answer.status >= 500:
            return "transfer"
        if answer.status != 200:
            raise InconclusiveProofError(f"the prefill engine answered {answer.status}")
        self._releaser.release_prefill(transfer_params(_handle(answer.body)))
        return found

    async def _ask(self, record: WorkerRecord, tokens: int, params: Json) -> PrefillResponse:
        """Prefill a prompt on the prefill worker; a late response of a responsive engine counts as its 504.

        Raises:
            InconclusiveProofError: the engine does not respond to prompts without a KV transfer either.
        """
        answer = await self._there(record, tokens, params, READ_S)
        if answer is not None:
            return answer
        if params is not KEEP:
            alone = await self._there(record, LEAST, KEEP, ALONE_S)
            if alone is not None and alone.status == 200:
                self._releaser.release_prefill(transfer_params(_handle(alone.body)))
                return PrefillResponse(504, b"", from_engine=True)
        raise InconclusiveProofError("the prefill engine did not answer")

    async def _there(self, record: WorkerRecord, tokens: int, params: Json, limit_s: float) -> PrefillResponse | None:
        name = f"weft-{secrets.token_hex(16)}"
        call = Call(_PATH, self._body(tokens, params), header_lines({REQUEST_ID: name}))
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._prefill_client.prefill(record, call, _NOTHING, name, DEFAULT_PRIORITY)
        except TimeoutError:
            return None
        except UpstreamFailedError as error:
            raise InconclusiveProofError(f"the prefill worker: {error}") from error
        if not answer.from_engine:
            raise InconclusiveProofError(f"the prefill worker answered {answer.status}")
        return answer

    async def _read(self, tokens: int, params: Json) -> BufferedResponse | Fault:
        """Read a prompt's KV into this worker's engine; return the fault if it fails although the engine responds.

        Raises:
            InconclusiveProofError: the engine does not respond at all.
        """
        host = str(params.get("remote_host"))
        reading = asyncio.ensure_future(self._here(tokens, params, READ_S))
        try:
            waits = await self._unanswered_while(reading, host)
            whole = reading.result() if reading.done() else None
        finally:
            reading.cancel()
            await asyncio.wait((reading,))
        if whole is not None and whole.status == 200:
            return whole
        if whole is None:
            # A path that drops packets can stall the whole engine: vLLM's worker waits for NIXL to send.
            if not waits and ((alone := await self._here(LEAST, None, ALONE_S)) is None or alone.status != 200):
                raise InconclusiveProofError("the decode engine did not answer")
        elif whole.status < 500:
            raise InconclusiveProofError(f"the decode engine answered {whole.status}")
        if waits:
            log.warning("kv_port_closed", extra={"host": host, "ports": sorted(waits)})
        return "data-port" if waits else "transfer"

    async def _unanswered_while(self, reading: asyncio.Future[BufferedResponse | None], host: str) -> frozenset[int]:
        """Wait for a read unless one of the host's ports stays silent; return the ports that were silent last."""
        waits, looks = frozenset[int](), 0
        while looks < SILENT_LOOKS and not (await asyncio.wait((reading,), timeout=SLOW_S))[0]:
            before, waits = waits, self._unanswered(host)
            looks = looks + 1 if before & waits else min(1, len(waits))
        return waits

    async def _here(self, tokens: int, params: Json | None, limit_s: float) -> BufferedResponse | None:
        engine, body = self._worker.engine, self._body(tokens, params)
        lines = header_lines({REQUEST_ID: f"weft-{secrets.token_hex(16)}"}) + engine.proof
        try:
            async with asyncio.timeout(limit_s):
                return await engine.pool.call(
                    UpstreamRequest(first_s=limit_s), engine.origin, _PATH, body, lines=lines, limit=_REPLY_BYTES
                )
        except TimeoutError:
            return None
        except UpstreamFailedError as error:
            if error.reason == "timeout":
                return None
            raise InconclusiveProofError(f"the decode engine: {error}") from error

    def _body(self, tokens: int, params: Json | None) -> bytes:
        body: Json = {
            "model": self._model,
            "prompt": [_TOKEN] * tokens,
            "max_tokens": 1,
            "cache_salt": secrets.token_hex(16),
        }
        return orjson.dumps(body if params is None else {**body, "kv_transfer_params": params})

    async def _counted(self, *, more_than: PulledKv | None = None) -> PulledKv:
        """Return the engine's counter of read KV; wait a little for it to exceed ``more_than``."""
        until = monotonic() + COUNTED_S
        while True:
            page = await self._worker.engine.metrics()
            if page is None:
                raise InconclusiveProofError("the decode engine tells no metrics")
            found = read_pulled_kv(page)
            if more_than is None or found.size > more_than.size or monotonic() >= until:
                return found
            await asyncio.sleep(LOOK_S)


def _handle(raw: bytes) -> Json | None:
    """Return the KV handle in a whole response."""
    try:
        return read_counts("text", raw)[1].handle
    except ValueError:
        return None
