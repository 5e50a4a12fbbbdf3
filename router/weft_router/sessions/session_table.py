"""The sessions of a decode worker: their prompt history, tokens with KV, and KV handles."""

import math
from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest
from time import monotonic
from typing import Final

from weft_core.policies.retention import note_return, return_rate
from weft_core.policies.snapshot import PrefillTask
from weft_router.engines.handles import KvHandle, Outcome
from weft_router.openai.inference import Inference
from weft_router.openai.prompt_history import PromptHistory, extends, shared_share
from weft_router.openai.tokens import CharsPerToken
from weft_router.sessions.return_times import ReturnTimes
from weft_router.sessions.session import CachedPrompt, PrefixMatch, Session

MAX_SESSIONS = 50_000
LESS: Final = 250
"""How many sessions below the bound remain after evicting: a dict finds its oldest entry by skipping deleted ones, so
eviction is done in batches."""
LOOK_EVERY_S: Final = 1.0
"""Interval of checks for expired sessions, for the same reason."""
CONSIDERED: Final = 512
"""Handles that are compared for their value, those of the longest idle sessions: a few milliseconds' work."""


OnEnd = Callable[[str, Session], None]


class SessionTable:
    """The sessions of one decode worker; bounded, and idle ones expire.

    ``on_end`` is called with each session that ends; a handle that it still has will not be used. ``on_spare`` is
    called with a handle that a later one of the same session superseded.
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
        """In order of the end of their last round."""
        self._looks_at = -math.inf
        self.return_times = ReturnTimes()
        self.tokens = 0
        """Tokens of all sessions that have KV here."""

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self._sessions)

    def begin(self, key: str, inference: Inference, prompt_history: PromptHistory, ratio: CharsPerToken) -> PrefixMatch:
        """Match a new round with its session, and take the session's handle, which may be sent only once."""
        now = self._clock()
        whole = inference.exact_tokens or ratio.estimate(inference.chars)
        follows = inference.follows
        session = self._sessions.get(key)
        if session is None or now - session.ended_at > self._ttl_s:
            index = 0 if session is None else session.rounds
            return PrefixMatch(PrefillTask(0, whole), later=follows, continues=False, index=index)
        handle, session.handle = session.handle, None
        gap_s = now - session.ended_at
        if session.returns is not None:
            note_return(session.returns, gap_s)
            session.returns = None
        follows_on = extends(inference, prompt_history, session.prompt_history)
        if session.away and (handle is None or not handle.live(now) or not follows_on):
            gone: Outcome | None = None
            if handle is not None:
                gone = "history_changed" if handle.live(now) else "expired"
            return PrefixMatch(
                PrefillTask(0, whole), later=True, continues=False, lost=gone, spare=handle, gap_s=gap_s,
                prefilled=session.cached, index=session.rounds, forgone=max(0, min(session.tokens, whole - 1)),
                origin=session.origin if follows_on else None,
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
        elif inference.chained:  # the request has only the increment
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
        tool: str = "",
        prefilled_by: str = "",
        prefilled_tokens: int = 0,
    ) -> None:
        """Record a finished round; the handle of a concurrent round of the same session is superseded.

        ``tool``: the tool that its answer calls, "" for none.
        """
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
            returns=self.return_times.counts(class_, tool),
            prefilled_by=prefilled_by,
            prefilled_tokens=prefilled_tokens,
        )
        if now >= self._looks_at or len(self._sessions) > MAX_SESSIONS:
            self._expire(now)

    def put_back(self, key: str, handle: KvHandle) -> None:
        """Return a handle to its session: the round that took it was not served."""
        session = self._sessions.get(key)
        if session is not None and session.handle is None:
            session.handle = handle

    def yield_handles(self, most: int, value: Callable[[str, int, float], float]) -> list[KvHandle]:
        """Take the handles of the idle sessions that are worth least.

        ``value`` of a session's key, its handle's tokens, and its rate of return before the handle ends; of the same
        value, the longest idle gives first.
        """
        now, found = self._clock(), list[tuple[float, Session, KvHandle]]()
        for key, session in self._sessions.items():
            handle = session.handle
            if handle is None or session.away or not handle.live(now):
                continue
            counts = session.returns
            if counts is None:
                counts = self.return_times.counts(session.class_, "")
            rate = return_rate(counts, now - session.ended_at, handle.deadline - now)
            found.append((value(key, handle.tokens, rate), session, handle))
            if len(found) >= CONSIDERED:
                break
        least = nsmallest(most, found, key=_worth)
        for _, session, _ in least:
            session.handle = None
        return [handle for _, _, handle in least]

    def idle(self) -> Iterable[Session]:
        """Return all sessions."""
        return self._sessions.values()

    def items(self) -> Iterable[tuple[str, Session]]:
        """Return all sessions with their keys, in order of the end of their last round."""
        return self._sessions.items()

    def hand_over(self, key: str) -> Session | None:
        """Remove a session that continues on another worker, and return it."""
        session = self._sessions.pop(key, None)
        if session is not None:
            self.tokens -= _held(session)
        return session

    def take_over(self, key: str, session: Session) -> None:
        """Add a session that was imported from another worker."""
        self._replaced(key)
        self._sessions[key] = session
        self.expire()

    def expire(self) -> None:
        """Remove sessions idle beyond their time to live, and the oldest ones above the bound."""
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
        """Remove a session that is about to be replaced; its handle is superseded."""
        old = self.hand_over(key)
        if old is not None and old.handle is not None and self._on_spare is not None:
            self._on_spare(old.handle)
        return old

    def close(self, key: str) -> Session | None:
        """End a session, and return it."""
        session = self.hand_over(key)
        if session is not None:
            if session.returns is not None:
                note_return(session.returns, math.inf)
            if self._on_end is not None:
                self._on_end(key, session)
        return session


def _held(session: Session) -> int:
    """Return the tokens of a session that have KV here."""
    return 0 if session.away else session.tokens


def _worth(candidate: tuple[float, Session, KvHandle]) -> float:
    return candidate[0]
