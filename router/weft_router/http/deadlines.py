"""Find clients that hold a connection without progress: slow heads, bodies and readers, and idle ones."""

from typing import Final

from weft_router.http.limits import HttpLimits

IDLE: Final = "idle"
SLOW_BODY: Final = "slow body"
SLOW_CLOSE: Final = "slow close"
SLOW_HEADERS: Final = "slow headers"
SLOW_READER: Final = "slow reader"


class ClientDeadlines:
    """The deadlines of one client's connection; times are of the monotonic clock, in seconds.

    The connection notes what happens in the fields; a sweep over all connections asks which of them are overdue.
    """

    __slots__ = ("_limits", "_moved_at", "closed_at", "reading", "seen", "since", "stalled_at")

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._moved_at = 0.0
        """The last sweep that saw more of the body than the one before."""
        self.reading = True
        """Whether a request is awaited or coming, rather than the next one of a client that is between two."""
        self.since = 0.0
        """When that began, to a sweep: 0 before one saw it."""
        self.seen = 0
        """The body's bytes at the last sweep."""
        self.stalled_at = 0.0
        """Since when the client does not read what was written; 0: it does."""
        self.closed_at = 0.0
        """When the connection was closed, with bytes still to be sent; 0: it is open."""

    def overdue(self, now: float, *, served: bool, body: int, lingers: bool) -> str | None:
        """Return why a connection is to be ended, None where it is not.

        ``served``: a request is being served; ``body`` is how many bytes of a body came, -1 where none is coming;
        ``lingers``: the client may still be sending what was refused.
        """
        limits = self._limits
        if not self.since:
            self.since = now
        if self.closed_at:
            return SLOW_CLOSE if now - self.closed_at > (limits.linger_s if lingers else limits.stall_s) else None
        if self.stalled_at:
            return SLOW_READER if now - self.stalled_at > limits.stall_s else None
        if served:
            return None
        if body >= 0:
            return SLOW_BODY if self._body_overdue(now, body) else None
        if self.reading:
            return SLOW_HEADERS if now - self.since > limits.header_s else None
        return IDLE if now - self.since > limits.keep_alive_s else None

    def _body_overdue(self, now: float, received: int) -> bool:
        """Return whether a body is overdue: its deadline grows with the bytes received and passes when none arrive."""
        limits = self._limits
        if received > self.seen:
            self.seen, self._moved_at = received, now
        spent, rate = now - self.since, limits.min_body_rate
        if spent <= limits.body_s:
            return False
        moving = now - max(self._moved_at, self.since) <= limits.body_s
        return not moving or (rate > 0 and spent > limits.body_s + received / rate)
