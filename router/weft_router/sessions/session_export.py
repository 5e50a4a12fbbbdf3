"""Migrate a session from a draining decode worker to the one that serves its next round.

What migrates is the session's state: its prompt history, which prefill workers may still cache it, and the handle with
which its KV can be read as long as the draining worker lives. A history that is faster recomputed than read, or that no
prefill worker could read, migrates without a handle, and its KV is released at once.

A session without a handle may have its KV in the draining engine's cache, in GPU memory or a tier, as the engine's
events tell. Then that engine prefills the next round, and the new worker reads all KV from it.
"""

from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import NamedTuple, Protocol, cast

from weft_core.cost import CostProfileError
from weft_core.heartbeat import WorkerRecord
from weft_core.kv_tiers import t_load
from weft_router.config import Settings
from weft_router.engines.handles import KvHandle
from weft_router.openai.body import Json
from weft_router.openai.prompt_history import PromptHistory
from weft_router.sessions.session import CachedPrompt, KvOrigin, Session
from weft_router.sessions.session_table import SessionTable


class DrainBacklog(NamedTuple):
    """What a draining worker waits for besides its live rounds.

    ``sessions``: the number of sessions whose KV may still be read for their next round; ``kv``: whether its engine
    keeps KV for which a handle was exported.
    """

    sessions: int = 0
    kv: bool = False


NO_BACKLOG = DrainBacklog()
GAPS = 256
"""Number of latest pauses from which the usual pause is estimated."""
USUAL = 0.95
SLACK = 1.25
UNKNOWN_S = 30.0
"""How long a next round is awaited before any pause was observed."""


class SessionSource(Protocol):
    """A client for the worker that a session leaves."""

    async def fetch(self, record: WorkerRecord, session: str) -> Json | None:
        """Export a session from that worker; None when it has no such session, or does not answer."""

    async def report_read(self, record: WorkerRecord, session: str) -> None:
        """Report to a worker that a session's KV was read from it, or will not be read."""


class SessionExport:
    """Exports idle sessions of a draining decode worker, and tracks whose KV is still to be read."""

    def __init__(
        self, settings: Settings, *, sessions: SessionTable, prefill_workers: Callable[[], Sequence[WorkerRecord]],
        elsewhere: Callable[[], bool], give_back: Callable[[KvHandle], None],
        held: Callable[[str], tuple[int, Mapping[str, int]]], healthy: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Export ``sessions``; ``prefill_workers`` can read their KV, ``elsewhere``: whether another worker decodes.

        ``held`` returns how many tokens of a session the engine has without a handle, and those in tiers, by tier;
        ``healthy``: whether the engine has anything at all.
        """
        self._settings = settings
        self._sessions = sessions
        self._prefill_workers = prefill_workers
        self._elsewhere = elsewhere
        self._give_back = give_back
        self._held = held
        self._healthy = healthy
        self._speeds = settings.config.engine.tier_speeds()
        self._gaps: deque[float] = deque(maxlen=GAPS)
        self.moved = {"handle": 0, "cache": 0, "prefill": 0}
        """Exported sessions, by whether their history is read with a handle, comes from this engine's cache, or is
        prefilled again."""
        self._lent: dict[str, float] = {}

    def paused(self, seconds: float) -> None:
        """Record the pause of a session before a round."""
        self._gaps.append(seconds)

    @property
    def patience_s(self) -> float:
        """Return how long a session may pause before it counts as ended: longer than nearly all observed pauses."""
        if not self._gaps:
            return UNKNOWN_S
        return SLACK * sorted(self._gaps)[int(USUAL * (len(self._gaps) - 1))] + 1.0

    def export(self, key: str) -> Json | None:
        """Remove a session and return its state; None when it is unknown."""
        session = self._sessions.hand_over(key)
        if session is None:
            return None
        now = monotonic()
        if not self._healthy():
            session.handle = None
        elif session.handle is not None and not self._pays(session, now):
            self._give_back(session.handle)
            session.handle = None
        if session.handle is not None:
            patience_s = self._settings.config.engine.lease_seconds
            self._lent[key] = min(session.handle.deadline, now + patience_s)
        elif not session.away and (origin := self._origin(key)) is not None:
            session.origin = origin
            self._lent[key] = now + self._settings.config.engine.lease_seconds
        self.moved[way_of(session)] += 1
        return dump_session(session, now)

    def lends(self, key: str) -> bool:
        """Return whether an exported session's KV is still to be read, so that this worker prefills its next round."""
        return self._lent.get(key, 0.0) > monotonic()

    def mark_read(self, key: str) -> None:
        """Record that the KV of an exported session was read, or will not be read."""
        self._lent.pop(key, None)

    @property
    def unread(self) -> bool:
        """Return whether KV of exported sessions is still to be read; no reader takes longer than a lease."""
        now = monotonic()
        return any(until > now for until in self._lent.values())

    def waiting(self) -> int:
        """Return how many sessions have KV here that is worth reading and whose next round is still likely."""
        if not self._elsewhere():
            return 0
        now = monotonic()
        since = now - self.patience_s
        return sum(
            session.ended_at >= since
            and (self._pays(session, now) or (not session.away and self._origin(key) is not None))
            for key, session in self._sessions.items()
        )

    def _origin(self, key: str) -> KvOrigin | None:
        """Return what the engine has of a session without a handle; None where computing it is faster than reading."""
        tokens, below = self._held(key)
        if not tokens or not self._healthy():
            return None
        settings = self._settings
        profile, degree = settings.profile, settings.degree
        load_s = t_load(below, profile.kv_bytes_per_token, self._speeds)
        try:
            read_s = profile.t_kv(tokens, source=degree, destination=degree)
        except CostProfileError:
            read_s = 0.0
        pays = load_s + read_s <= profile.t_pre(history=0, increment=tokens, degree=degree)
        return KvOrigin(settings.worker, tokens, load_s) if pays else None

    def _pays(self, session: Session, now: float) -> bool:
        """Return whether some prefill worker reads the history faster than it computes it."""
        handle = session.handle
        if handle is None or not handle.live(now):
            return False
        settings = self._settings
        for peer in self._prefill_workers():
            profile = settings.profile_of(peer.pool)
            try:
                read = profile.t_kv(handle.tokens, source=settings.degree, destination=peer.degree)
            except CostProfileError:  # the transfer is not in the profile: assume that reading pays
                return True
            if read <= profile.t_pre(history=0, increment=handle.tokens, degree=peer.degree):
                return True
        return False


def way_of(session: Session) -> str:
    """Return how the history of a session that moves goes on: by handle, by the cache of its worker, or by prefill."""
    if session.handle is not None:
        return "handle"
    return "prefill" if session.origin is None else "cache"


def dump_session(session: Session, now: float) -> Json:
    """Return a session as JSON, times relative to ``now``."""
    seen, handle = session.prompt_history, session.handle
    return {
        "transcript": {
            "kind": seen.kind,
            "links": b64encode(seen.links).decode(),
            "sizes": list(seen.sizes),
            "length": seen.length,
            "ids": seen.ids,
            "response": seen.response,
        },
        "tokens": session.tokens,
        "chars": session.chars,
        "rounds": session.rounds,
        "idleSeconds": now - session.ended_at,
        "prefilled": {worker: [prompt.tokens, now - prompt.at] for worker, prompt in session.cached.items()},
        "class": session.class_,
        "origin": None if session.origin is None else list(session.origin),
        "handle": None
        if handle is None
        else {
            "params": handle.params,
            "tokens": handle.tokens,
            "seconds": handle.deadline - now,
            "digest": None if handle.digest is None else handle.digest.hex(),
            "holder": handle.holder,
        },
    }


def load_session(body: Json, now: float, *, source: str) -> Session | None:
    """Return a session that the worker ``source`` exported; None when it was exported by an incompatible version."""
    try:
        seen, given = cast(Json, body["transcript"]), body["handle"]
        kind = seen["kind"]
        if kind not in ("chat", "text", "responses"):
            return None
        handle = None
        if isinstance(given, dict):
            digest = given["digest"]
            handle = KvHandle(
                params=dict(given["params"]), tokens=int(given["tokens"]), deadline=now + float(given["seconds"]),
                digest=None if digest is None else bytes.fromhex(digest), holder=str(given.get("holder") or source),
            )  # fmt: skip
        origin = None
        if body.get("origin") is not None:
            worker, tokens, load_s = cast(tuple[str, int, float], body["origin"])
            origin = KvOrigin(str(worker), int(tokens), float(load_s))
        return Session(
            prompt_history=PromptHistory(
                kind, b64decode(cast(str, seen["links"])), tuple(map(int, cast(list[int], seen["sizes"]))),
                int(cast(int, seen["length"])), seen["ids"] is True, str(seen["response"]),
            ),
            tokens=int(cast(int, body["tokens"])), chars=int(cast(int, body["chars"])), handle=handle,
            rounds=int(cast(int, body["rounds"])), ended_at=now - float(cast(float, body["idleSeconds"])),
            prefilled={
                str(worker): CachedPrompt(int(tokens), now - float(ago))
                for worker, (tokens, ago) in cast(dict[str, tuple[int, float]], body["prefilled"]).items()
            },
            class_=str(body["class"]), away=True, origin=origin,
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
