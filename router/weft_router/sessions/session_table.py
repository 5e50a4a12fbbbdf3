"""Remember, on the decode worker that holds a session's KV, what its engine saw and how it may be read by others."""

import math
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Final

from weft_core.policies.snapshot import PrefillTask
from weft_router.engines.handles import KvHandle, Outcome
from weft_router.openai.inference import Inference
from weft_router.openai.prompt_history import PromptHistory, extends, shared_share
from weft_router.openai.tokens import CharsPerToken
from weft_router.sessions.session import CachedPrompt, PrefixMatch, Session

MAX_SESSIONS = 50_000
LESS: Final = 250
"""How many fewer than that are left where there are more: a dict finds its oldest by passing all that were deleted."""
LOOK_EVERY_S: Final = 1.0
"""How often it is looked for those that are idle for too long, for the same reason."""


OnEnd = Callable[[str, Session], None]


class SessionTable:
    """The sessions of one decode worker; bounded, idle ones are forgotten.

    ``on_end`` is told of each that ends: its last rounds were served, and a handle that it still has serves nobody.
    ``on_spare`` is told of a handle that no round can use any more: a later one of the same session took its place.
    """

    def __init__(
        self, *, ttl_s: float, clock: Callable[[], float] = monotonic, on_end: OnEnd | None = None,
        on_spare: Callable[[KvHandle], None] | None = None,
    ) -> None:  # fmt: skip
        self._ttl_s = ttl_s
        self._on_end = on_end
        self._on_spare = on_spare
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        """Those whose last round ended last are at the end."""
        self._looks_at = -math.inf
        self.tokens = 0
        """Tokens of all sessions that have KV here."""

    def __len__(self) -> int:
        """Return how many sessions are remembered."""
        return len(self._sessions)

    def begin(self, key: str, inference: Inference, prompt_history: PromptHistory, ratio: CharsPerToken) -> PrefixMatch:
        """Look at a new round of a session and take its handle: whatever happens next, it is offered once."""
        now = self._clock()
        whole = inference.exact_tokens or ratio.estimate(inference.chars)
        follows = inference.follows
        session = self._sessions.get(key)
        if session is None or now - session.ended_at > self._ttl_s:
            index = 0 if session is None else session.rounds
            return PrefixMatch(PrefillTask(0, whole), later=follows, continues=False, index=index)
        handle, session.handle = session.handle, None
        gap_s = now - session.ended_at
        follows_on = extends(inference, prompt_history, session.prompt_history)
        if session.away and (handle is None or not handle.live(now) or not follows_on):
            gone: Outcome | None = None
            if handle is not None:
                gone = "history_changed" if handle.live(now) else "expired"
            return PrefixMatch(
                PrefillTask(0, whole), later=True, continues=False, lost=gone, spare=handle, gap_s=gap_s,
                prefilled=session.cached, index=session.rounds, forgone=max(0, min(session.tokens, whole - 1)),
            )  # fmt: skip
        if not follows_on:
            history = min(whole - 1, int(session.tokens * shared_share(prompt_history, session.prompt_history)))
            task = PrefillTask(max(0, history), max(1, whole - history))
            lost: Outcome | None = "history_changed" if handle is not None else None
            return PrefixMatch(
                task, later=True, continues=False, lost=lost, spare=handle, gap_s=gap_s, index=session.rounds
            )
        known = session.cached
        if inference.exact_tokens is not None:
            increment = max(1, inference.exact_tokens - session.tokens)
        elif inference.chained:  # only what is new was sent
            increment = ratio.estimate(inference.chars)
        else:
            increment = ratio.estimate(max(1, inference.chars - session.chars))
        task = PrefillTask(session.tokens, increment)
        if handle is not None and not handle.live(now):
            return PrefixMatch(
                task, later=True, continues=True, lost="expired", gap_s=gap_s, prefilled=known, index=session.rounds
            )
        return PrefixMatch(
            task, later=True, continues=not session.away, handle=handle, gap_s=gap_s, prefilled=known,
            index=session.rounds, away=session.away,
        )  # fmt: skip

    def finish(
        self,
        key: str,
        *,
        prompt_history: PromptHistory,
        tokens: int,
        chars: int,
        handle: KvHandle | None,
        prefilled: Mapping[str, CachedPrompt],
        class_: str = "",
        prefilled_by: str = "",
        prefilled_tokens: int = 0,
    ) -> None:
        """Remember a finished round; what another round of the session left, at the same time, is spare then."""
        now = self._clock()
        old = self._replaced(key)
        self.tokens += tokens
        self._sessions[key] = Session(
            prompt_history=prompt_history,
            tokens=tokens,
            chars=chars,
            handle=handle,
            rounds=(old.rounds if old is not None else 0) + 1,
            ended_at=now,
            prefilled=prefilled,
            class_=class_,
            prefilled_by=prefilled_by,
            prefilled_tokens=prefilled_tokens,
        )
        if now >= self._looks_at or len(self._sessions) > MAX_SESSIONS:
            self._expire(now)

    def put_back(self, key: str, handle: KvHandle) -> None:
        """Keep a handle for the session's next round: the one that took it was not served."""
        session = self._sessions.get(key)
        if session is not None and session.handle is None:
            session.handle = handle

    def yield_handles(self, most: int) -> list[KvHandle]:
        """Take the handles of sessions that wait for their next round, those that wait longest first."""
        now, found = self._clock(), list[KvHandle]()
        for session in self._sessions.values():
            if len(found) >= most:
                break
            if session.handle is not None and not session.away and session.handle.live(now):
                found.append(session.handle)
                session.handle = None
        return found

    def idle(self) -> Iterable[Session]:
        """Return every session as its last round left it."""
        return self._sessions.values()

    def hand_over(self, key: str) -> Session | None:
        """Forget a session that goes on elsewhere; return what was known of it."""
        session = self._sessions.pop(key, None)
        if session is not None:
            self.tokens -= _held(session)
        return session

    def take_over(self, key: str, session: Session) -> None:
        """Remember a session that was on another worker until now."""
        self._replaced(key)
        self._sessions[key] = session
        self.expire()

    def expire(self) -> None:
        """Forget sessions idle beyond their time to live, and the oldest ones above the bound."""
        self._expire(self._clock())

    def _expire(self, now: float) -> None:
        self._looks_at = now + LOOK_EVERY_S
        left, gone = len(self._sessions), list[str]()
        most = MAX_SESSIONS if left <= MAX_SESSIONS else MAX_SESSIONS - LESS
        for key, session in self._sessions.items():
            if now - session.ended_at <= self._ttl_s and left <= most:
                break
            gone.append(key)
            left -= 1
        for key in gone:
            self.close(key)

    def _replaced(self, key: str) -> Session | None:
        """Take a session from its place, as another state of it comes; a handle that it has is spare then."""
        old = self.hand_over(key)
        if old is not None and old.handle is not None and self._on_spare is not None:
            self._on_spare(old.handle)
        return old

    def close(self, key: str) -> Session | None:
        """Forget a session; return what was known of it."""
        session = self.hand_over(key)
        if session is not None and self._on_end is not None:
            self._on_end(key, session)
        return session


def _held(session: Session) -> int:
    """Return the tokens of a session that have KV here."""
    return 0 if session.away else session.tokens
