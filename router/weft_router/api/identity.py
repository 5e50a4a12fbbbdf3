"""Find out which session a request belongs to: a header, a body field, or a conversation it continues.

Keys are hashes over tenant, source and id, so equal ids of two tenants never meet and a key tells nothing.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from weft_router.api.body import Json
from weft_router.api.inference import Inference
from weft_router.api.transcript import Transcript, heads
from weft_router.errors import InvalidRequestError

BODY_FIELDS = ("session_id", "conversation_id", "previous_response_id", "prompt_cache_key")
MAX_ID = 256


@dataclass(frozen=True, slots=True)
class Identity:
    """A session's key, the id shown to its client, and the prefix hashes by which a nameless one is found again."""

    key: str
    shown: str
    parents: tuple[str, ...] = ()
    head: str = ""


def explicit(tenant: str, headers: Mapping[str, str], body: Json) -> Identity | None:
    """Return the session a client names itself: the header first, then the body fields; None when it names none.

    Raises:
        InvalidRequestError: the id is not a text of 1..256 printable characters.
    """
    candidates: list[tuple[str, object]] = [("X-Session-Id", headers.get("X-Session-Id"))]
    for field in BODY_FIELDS:
        value = body.get(field)
        if field == "conversation_id" and value is None and isinstance(body.get("conversation"), str):
            value = body["conversation"]
        candidates.append((field, value))
    for source, value in candidates:
        if value is None or value == "":
            continue
        if not isinstance(value, str) or len(value) > MAX_ID or not value.isprintable():
            raise InvalidRequestError(f"{source}: must be a text of 1 to {MAX_ID} printable characters", param=source)
        return Identity(key=session_key(tenant, "id", value), shown=value)
    return None


def derived(tenant: str, inference: Inference, transcript: Transcript, *, fresh: str) -> Identity:
    """Return the identity of a nameless conversation; ``fresh`` names it if it continues none that is known.

    ``parents`` are the hashes of every shorter prefix after which an assistant message follows, longest
    first: an earlier request that ended there is the round before this one.
    """
    key = session_key(tenant, "fresh", fresh)
    if inference.kind != "chat":
        return Identity(key=key, shown=f"weft-{key[:16]}")
    chain = heads(transcript)
    follows = [i for i, message in enumerate(inference.messages) if i > 0 and message.get("role") == "assistant"]
    return Identity(
        key=key,
        shown=f"weft-{key[:16]}",
        parents=tuple(session_key(tenant, "head", chain[i]) for i in reversed(follows)),
        head=session_key(tenant, "head", chain[-1]),
    )


def session_key(tenant: str, source: str, value: str) -> str:
    """Return the opaque key of an id within a tenant; 128 bits, lengths bound so that parts cannot slide."""
    text = f"{len(tenant)}:{tenant}|{source}|{value}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Heads:
    """Remember which session ended with which prefix; bounded, the oldest is forgotten first."""

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._sessions: OrderedDict[str, str] = OrderedDict()

    def find(self, parents: tuple[str, ...]) -> str | None:
        """Return the session of the longest known prefix."""
        return next((self._sessions[p] for p in parents if p in self._sessions), None)

    def put(self, head: str, session: str) -> None:
        """Remember that a session's latest request ended with this prefix."""
        self._sessions[head] = session
        self._sessions.move_to_end(head)
        while len(self._sessions) > self._limit:
            self._sessions.popitem(last=False)
