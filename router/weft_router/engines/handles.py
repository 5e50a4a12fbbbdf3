"""Keep the KV handle of a session's last round: used once, only for an exact continuation, never after its deadline."""

import hashlib
from dataclasses import dataclass
from typing import Final, Literal

from weft_router.mypyc_compat import mypyc_attr
from weft_router.openai.body import Json
from weft_router.openai.token_ids import TokenIds

MARGIN_S: Final = 5.0
"""A handle counts as expired this long before the engine frees its blocks: a margin for queueing and clock
differences."""

_NEEDED: Final[tuple[str, ...]] = (
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    "remote_block_ids",
)

Outcome = Literal[
    "stored",  # a finished round left a handle
    "used",  # a remote prefill read the history through it
    "expired",  # its deadline passed before the next round came
    "superseded",  # the next round ran locally, where the prefix cache already holds the history
    "history_changed",  # the next prompt does not extend what the engine saw; or none can, as the client has other text
    "ids_differ",  # the prompt's token ids do not extend what the engine saw; the prefill was done again without it
    "closed",  # the client ended the session
    "refused",  # the engine would not read it; the prefill was done again without it
    "lost",  # the prefill worker broke while it may have been reading
    "yielded",  # the engine had no room for requests that waited, and this session's next round was not there yet
    "malformed",  # the engine's object cannot be a handle
    "orphaned",  # KV was pinned for a decode that did not take it; it is given back, or waits for its lease
]


@mypyc_attr(acyclic=True)
@dataclass(frozen=True, slots=True)
class KvHandle:
    """What an engine gave to let another worker read a session's KV, and until when it may be offered.

    ``holder`` is the worker that the session left, whose engine holds the KV and cannot read it from itself; "": this
    worker's own engine does.
    """

    params: Json
    tokens: int
    deadline: float
    digest: bytes | None
    holder: str = ""

    def live(self, now: float) -> bool:
        """Return whether the blocks are still surely pinned."""
        return now < self.deadline


def accept(
    params: Json, *, ids: TokenIds | None, plain: bool, received: float, lease_s: float, ttl_s: float
) -> KvHandle | None:
    """Return a usable handle from an engine's object, None when it cannot be one.

    A decode worker that was given KV returns the object ready for a prefill worker and keeps the blocks for
    ``ttl_s``; one that prefilled by itself exports like a prefill worker, flags the other way round, for
    ``lease_s`` only. Without token ids only a reply of plain text is sure to render to the same tokens again.
    """
    if not points(params):
        return None
    tokens = params.get("remote_num_tokens")
    if not isinstance(tokens, int) or tokens < 1:
        return None
    digest = prefix_digest(ids, tokens) if ids is not None else None
    if digest is None and (ids is not None or not plain):
        return None
    exported = params.get("do_remote_prefill") is True
    kept_s = min(lease_s, ttl_s) if exported else ttl_s
    return KvHandle(
        params={**params, "do_remote_decode": True, "do_remote_prefill": False},
        tokens=tokens,
        deadline=received + kept_s - MARGIN_S,
        digest=digest,
    )


def points(params: Json) -> bool:
    """Return whether an engine's object names all that another engine needs to read the KV."""
    for name in _NEEDED:  # noqa: SIM110 - compiled, a generator costs more than the rest
        if not params.get(name):
            return False
    return True


def prefix_digest(ids: TokenIds, tokens: int) -> bytes | None:
    """Return the digest of the first ``tokens`` ids; None when there are fewer."""
    if len(ids) < tokens:
        return None
    return hashlib.blake2b(memoryview(ids)[:tokens], digest_size=16).digest()
