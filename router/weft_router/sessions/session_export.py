"""Move a session from a decode worker that drains to the one that serves its next round.

What moves is what is known of it: what its engine saw, which prefill workers may still cache it, and the handle by
which its KV can be read where it lies, as long as the worker lives. A history that is sooner computed than read, or
that nobody could read, moves without a handle, and its KV is given back at once.
"""

from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple, Protocol, cast

from weft_core.cost import CostProfileError
from weft_core.heartbeat import WorkerRecord
from weft_router.config import Settings
from weft_router.engines.handles import KvHandle
from weft_router.openai.body import Json
from weft_router.openai.prompt_history import PromptHistory
from weft_router.sessions.session import CachedPrompt, Session
from weft_router.sessions.session_table import SessionTable


class DrainBacklog(NamedTuple):
    """What keeps a draining worker besides its live rounds.

    ``sessions`` are those whose KV is still to be read for their next round, ``kv`` tells whether its engine keeps KV
    that somebody was given to read.
    """

    sessions: int = 0
    kv: bool = False


NO_BACKLOG = DrainBacklog()
GAPS = 256
"""So many latest pauses tell how long sessions usually pause."""
USUAL = 0.95
SLACK = 1.25
UNKNOWN_S = 30.0
"""How long a next round is waited for where no session had one yet."""


class SessionSource(Protocol):
    """The way to a worker that a session leaves."""

    async def fetch(self, record: WorkerRecord, session: str) -> Json | None:
        """Return what that worker knew of a session and forgets now; None when it knows nothing, or does not answer."""

    async def report_read(self, record: WorkerRecord, session: str) -> None:
        """Tell a worker that a session's KV was read from it, or will not be."""


class SessionExport:
    """What a draining decode worker still has for others: its idle sessions, and the KV they are read from."""

    def __init__(
        self, settings: Settings, *, sessions: SessionTable, prefill_workers: Callable[[], Sequence[WorkerRecord]],
        elsewhere: Callable[[], bool], give_back: Callable[[KvHandle], None],
    ) -> None:  # fmt: skip
        """Give away ``sessions``; ``peers`` can read their KV, ``elsewhere`` tells whether another worker decodes."""
        self._settings = settings
        self._sessions = sessions
        self._prefill_workers = prefill_workers
        self._elsewhere = elsewhere
        self._give_back = give_back
        self._gaps: deque[float] = deque(maxlen=GAPS)
        self.moved = {"handle": 0, "prefill": 0}
        """Sessions handed over, by how their history goes on."""
        self._lent: dict[str, float] = {}

    def paused(self, seconds: float) -> None:
        """Note how long a session paused before a round."""
        self._gaps.append(seconds)

    @property
    def patience_s(self) -> float:
        """Return how long a session may pause before it counts as over: longer than nearly all pauses so far."""
        if not self._gaps:
            return UNKNOWN_S
        return SLACK * sorted(self._gaps)[int(USUAL * (len(self._gaps) - 1))] + 1.0

    def export(self, key: str) -> Json | None:
        """Hand a session over: forget it here and return it; None when it is not known."""
        session = self._sessions.hand_over(key)
        if session is None:
            return None
        now = monotonic()
        if session.handle is not None and not self._pays(session, now):
            self._give_back(session.handle)
            session.handle = None
        if session.handle is not None:
            patience_s = self._settings.config.engine.lease_seconds
            self._lent[key] = min(session.handle.deadline, now + patience_s)
        self.moved["prefill" if session.handle is None else "handle"] += 1
        return dump_session(session, now)

    def mark_read(self, key: str) -> None:
        """Note that the KV of a session that was handed over has been read, or will not be."""
        self._lent.pop(key, None)

    @property
    def unread(self) -> bool:
        """Tell whether KV that was handed over is still to be read: nobody takes longer than a lease."""
        now = monotonic()
        return any(until > now for until in self._lent.values())

    def waiting(self) -> int:
        """Return how many sessions have KV here that is worth waiting for: their next round is still likely."""
        if not self._elsewhere():
            return 0
        now = monotonic()
        since = now - self.patience_s
        return sum(session.ended_at >= since and self._pays(session, now) for session in self._sessions.idle())

    def _pays(self, session: Session, now: float) -> bool:
        """Tell whether some prefill worker reads the history sooner than it computes it."""
        handle = session.handle
        if handle is None or not handle.live(now):
            return False
        settings = self._settings
        for peer in self._prefill_workers():
            profile = settings.profile_of(peer.pool)
            try:
                read = profile.t_kv(handle.tokens, source=settings.degree, destination=peer.degree)
            except CostProfileError:  # nothing is known of the way: the handle is what the engine itself offers
                return True
            if read <= profile.t_pre(history=0, increment=handle.tokens, degree=peer.degree):
                return True
        return False


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
        "handle": None
        if handle is None
        else {
            "params": handle.params,
            "tokens": handle.tokens,
            "seconds": handle.deadline - now,
            "digest": None if handle.digest is None else handle.digest.hex(),
        },
    }


def load_session(body: Json, now: float) -> Session | None:
    """Return a session that another worker had; None when that is another version, whose words mean something else."""
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
                digest=None if digest is None else bytes.fromhex(digest),
            )  # fmt: skip
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
            class_=str(body["class"]), away=True,
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
