"""Find out which session a request belongs to: a header, a body field, or a conversation it continues.

Keys are hashes over tenant, source and id, so equal ids of two tenants never meet and a key tells nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from time import monotonic
from typing import Final

from weft_router.errors import InvalidRequestError
from weft_router.openai.body import CHAINED, Json
from weft_router.openai.bounds import answered
from weft_router.openai.inference import Inference
from weft_router.openai.prompt_history import PromptHistory, prefix_hash
from weft_router.openai.responses import session_of

BODY_FIELDS: Final = ("session_id", "conversation_id", "previous_response_id", "prompt_cache_key")
_NAMING: Final = frozenset({*BODY_FIELDS, "conversation"})
MAX_ID: Final = 256
MAX_PARENTS: Final = 32
"""Only a client that goes back more than so many rounds at once starts a new session."""
_MOST_BEGUN: Final = 4096
_begun: Final[dict[str, dict[str, blake2b]]] = {}
"""What the keys of a source and a tenant are hashed on from: a copy costs less than a new one."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A session's key, the id shown to its client, and the prefix hashes by which a nameless one is found again."""

    key: str
    shown: str
    parents: tuple[str, ...] = ()
    prefix_hash: str = ""


def scope_of(tenant: str, adapter: str) -> str:
    """Return within what a session's name, and cached prefixes, count: a tenant's use of the model or of one adapter.

    KV that an adapter made is no other's, so that a session that changes its adapter is another session. No tenant's
    name has a space.
    """
    return f"{tenant} {adapter}" if adapter else tenant


def explicit_identity(
    tenant: str, headers: Mapping[str, str], body: Json, *, secret: bytes | None = None
) -> Identity | None:
    """Return the session a client names itself: the header first, then the body fields; None when it names none.

    Header names are in lower case. With a ``secret``, that of the Responses API, an earlier response comes before all:
    its history is where it was made, and only the tenant that got it may go on from it.

    Raises:
        InvalidRequestError: the id is not a text of 1..256 printable characters.
        NotFoundError: this service gave this tenant no such response.
    """
    if secret is not None and isinstance(earlier := body.get(CHAINED), str):
        session = session_of(secret, tenant, earlier)
        return Identity(session, f"weft-{session[:16]}")
    named = headers.get("x-session-id")
    if named:
        return _named(tenant, "X-Session-Id", named)
    if _NAMING.isdisjoint(body):
        return None
    value: object
    for field in BODY_FIELDS:
        value = body.get(field)
        if field == "conversation_id" and value is None and isinstance(body.get("conversation"), str):
            value = body["conversation"]
        if value is not None and value != "":
            return _named(tenant, field, value)
    return None


def _named(tenant: str, source: str, value: object) -> Identity:
    if not isinstance(value, str) or len(value) > MAX_ID or not value.isprintable():
        raise InvalidRequestError(f"{source}: must be a text of 1 to {MAX_ID} printable characters", param=source)
    return Identity(session_key(tenant, "id", value), value)


def derived_identity(tenant: str, inference: Inference, prompt_history: PromptHistory, *, fresh: str) -> Identity:
    """Return the identity of a nameless conversation; ``fresh`` names it if it continues none that is known.

    ``parents`` are the hashes of every shorter prefix after which an assistant message follows, longest
    first and at most MAX_PARENTS: an earlier request that ended there is the round before this one.
    """
    key = session_key(tenant, "fresh", fresh)
    shown = f"weft-{key[:16]}"
    if inference.kind == "text":
        return Identity(key, shown)
    items = inference.items
    place = _place(tenant)
    parents: list[str] = []
    for i in range(len(items) - 1, 0, -1):
        if answered(items[i]):
            parents.append(place + prefix_hash(prompt_history, i))
            if len(parents) == MAX_PARENTS:
                break
    return Identity(key, shown, tuple(parents), place + prefix_hash(prompt_history, len(items)))


@lru_cache(maxsize=4096)
def _place(tenant: str) -> str:
    """Return what keeps a tenant's prefix hashes apart from all others'."""
    return session_key(tenant, "head", "")


def session_key(tenant: str, source: str, value: str) -> str:
    """Return the opaque key of an id within a tenant; 128 bits, lengths bound so that parts cannot slide."""
    tenants = _begun.get(source)
    begun = tenants.get(tenant) if tenants is not None else None
    if begun is None:
        begun = _begin(tenant, source)
    hashed = begun.copy()
    hashed.update(value.encode("utf-8", "surrogatepass"))
    return hashed.hexdigest()


def _begin(tenant: str, source: str) -> blake2b:
    """Return a hash that has the tenant and the source, kept for the next key."""
    begun = blake2b(f"{len(tenant)}:{tenant}|{source}|".encode("utf-8", "surrogatepass"), digest_size=16)
    tenants = _begun.setdefault(source, {})
    if len(tenants) >= _MOST_BEGUN:
        tenants.clear()
    tenants[tenant] = begun
    return begun


class SessionIndex:
    """Remember for ``ttl_s`` seconds which session ended with which prefix; bounded, the oldest is forgotten first.

    The bound of each tenant keeps one that begins very many sessions from having all others forgotten.
    """

    def __init__(
        self, *, ttl_s: float, limit: int = 100_000, per_tenant: int = 50_000, clock: Callable[[], float] = monotonic
    ) -> None:
        self._ttl_s = ttl_s
        self._limit = limit
        self.per_tenant = per_tenant
        self._clock = clock
        self._sessions: OrderedDict[str, tuple[str, float, str]] = OrderedDict()
        self._tenants: dict[str, OrderedDict[str, None]] = {}
        """The prefixes of each tenant, those that were used last at the end."""
        self._latest: dict[str, str] = {}
        """The prefix that each session ended with last."""

    def __len__(self) -> int:
        """Return how many prefixes are remembered."""
        return len(self._sessions)

    def find(self, parents: tuple[str, ...]) -> str | None:
        """Return the session of the longest known prefix."""
        since = self._clock() - self._ttl_s
        for parent in parents:
            known = self._sessions.get(parent)
            if known is not None and known[1] >= since:
                return known[0]
        return None

    def put(self, prefix_hash: str, session: str, tenant: str = "") -> list[tuple[str, str]]:
        """Remember that a session's latest request ended with this prefix.

        Return what is forgotten because the tenant has too many: prefixes, each with its session where that ended with
        it, and with nothing where the session went on.
        """
        now = self._clock()
        sessions = self._sessions
        if prefix_hash in sessions and sessions[prefix_hash][2] != tenant:
            self._drop(prefix_hash)
        sessions[prefix_hash] = (session, now, tenant)
        sessions.move_to_end(prefix_hash)
        self._latest[session] = prefix_hash
        own = self._tenants.get(tenant)
        if own is None:
            own = self._tenants[tenant] = OrderedDict()
        own[prefix_hash] = None
        own.move_to_end(prefix_hash)
        gone: list[tuple[str, str]] = []
        while len(own) > self.per_tenant:
            oldest = next(iter(own))
            gone.append((oldest, self._drop(oldest)))
        since = now - self._ttl_s
        while len(sessions) > self._limit or next(iter(sessions.values()))[1] < since:
            self._drop(next(iter(sessions)))
        return gone

    def _drop(self, prefix_hash: str) -> str:
        """Forget a prefix; return the session that ended with it, if it did not go on."""
        session, _, tenant = self._sessions.pop(prefix_hash)
        own = self._tenants[tenant]
        own.pop(prefix_hash, None)
        if not own:
            del self._tenants[tenant]
        if self._latest.get(session) != prefix_hash:
            return ""
        del self._latest[session]
        return session
