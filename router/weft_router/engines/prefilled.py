"""Read what vLLM answers to a prefill: the counts and the parameters of its KV, and nothing else.

Its reply is read without parsing more of it than that, and not even that where it has the form of its worker's last.
"""

from typing import Final, cast

import orjson

from weft_router.api.body import Json
from weft_router.api.form import COUNTS, LIST, LONGEST, NEEDED, PATIENCE, Form, said
from weft_router.api.inference import Kind
from weft_router.api.reply import Reply
from weft_router.engines.adapter import Handed
from weft_router.engines.handles import points

CACHED: Final = "remote_prefill_cached_tokens"
"""How many tokens of the prompt the prefill engine had; an engine with Weft's plug-in tells."""
_USAGE: Final = b'"usage":{'
_PARAMS: Final = b',"kv_transfer_params":{'
"""Bare quotes stand outside of texts, so both are members; a reply of any other form is parsed."""
_GAPS: Final = ((b'"remote_request_id":"', NEEDED), (b'"remote_block_ids":[', LIST))
_WORKERS: Final = 1024
"""Workers whose form is kept, some 500 bytes each and never more than LONGEST."""
_loads: Final = orjson.loads


class _Worker:
    """The forms of one worker's replies: their counts and what follows these, and the parameters."""

    __slots__ = ("others", "params", "usage")

    def __init__(self) -> None:
        self.usage: Form | None = None
        self.params: Form | None = None
        self.others = PATIENCE


class Prefills:
    """Reads the replies of prefill workers; each worker's are alike, as they name the same engine at the same place."""

    __slots__ = ("_workers",)

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}

    def read(self, kind: Kind, raw: bytes, worker: str) -> Handed | None:
        """Return what a worker's reply gives the decode leg; None when it is not in vLLM's usual form."""
        counts = raw.find(_USAGE)
        if counts < 0:
            return None
        known = self._workers.get(worker)
        if known is not None and known.usage is not None and known.params is not None:
            reply = Reply(kind)
            at = known.usage.fill(raw, counts, reply)
            if at >= 0 and known.params.fill(raw, at, reply) == len(raw):
                known.others = 0
                return Handed(None, reply, written=raw[at:-1])
        at = raw.find(_PARAMS, counts)
        if at < 0 or not raw.endswith(b"}"):
            return None
        at += len(_PARAMS) - 1
        found = _read(kind, raw, counts, at)
        if found is not None and len(raw) - counts <= LONGEST:
            self._learn(found, raw, counts, at, worker)
        return found

    def _learn(self, found: Handed, raw: bytes, counts: int, at: int, worker: str) -> None:
        known = self._workers.get(worker)
        if known is None:
            if len(self._workers) >= _WORKERS:
                self._workers.clear()
            known = self._workers[worker] = _Worker()
        known.others += 1
        if known.others <= PATIENCE:
            return
        known.others = 0
        try:
            usage, params = Form(raw[counts:at], COUNTS), Form(raw[at:], _GAPS)
        except ValueError:
            return
        kind = found.reply.kind
        start = usage.other()
        other = _read(kind, start + params.other(), 0, len(start))
        reply = Reply(kind)
        if other is None or found.cached_tokens is not None or other.cached_tokens is not None:
            return
        if usage.fill(start, 0, reply) >= 0 and said(reply) == said(other.reply):
            known.usage, known.params = usage, params


def _read(kind: Kind, raw: bytes, counts: int, at: int) -> Handed | None:
    """Read a reply whose counts and parameters stand there; None when these are not the reply's own.

    The parameters stand last, the counts before them. If what follows their key is one JSON object, then the key was no
    deeper than the reply itself, and these bytes can go on as they are: for a long prompt they list a thousand blocks.
    Nor were the counts, if what stands between both keys is whole members.
    """
    written = raw[at:-1]
    try:
        found = transfer_params(_loads(written))
        usage: object = _loads(b"{" + raw[counts : at - len(_PARAMS) + 1] + b"}")["usage"]
    except orjson.JSONDecodeError:
        return None
    if found is None:
        return None
    reply = Reply(kind)
    reply.take_usage(usage)
    return Handed(found, reply, written=written, cached_tokens=cached_tokens(found))


def transfer_params(params: object) -> Json | None:
    """Return the object for the decode leg when a prefill reply holds a whole one, None otherwise."""
    if not isinstance(params, dict) or params.get("do_remote_prefill") is not True:
        return None
    found = cast(Json, params)
    return found if points(found) else None


def cached_tokens(params: Json) -> int | None:
    """Return how many tokens of the prompt a prefill engine had, where it tells."""
    cached = params.get(CACHED)
    return cached if isinstance(cached, int) else None
