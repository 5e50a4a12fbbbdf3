"""Say how the engine misbehaves on purpose."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Action = Literal["die", "hang", "cut"]
_STAGES: Mapping[Action, tuple[str, ...]] = {
    "die": ("before_headers", "after_headers", "after_body"),
    "hang": ("before_headers", "after_headers"),
    "cut": ("before_headers", "after_headers", "half"),
}
_SWITCHES = ("hang", "lie_health", "unhealthy", "fail_transfers", "no_adapters", "full_tiers", "fail_loads")
_TOKEN = re.compile(r"token:([1-9]\d{0,8})")


class FaultError(ValueError):
    """Report a fault nobody can arrange; the message names the field and the fix."""


@dataclass(frozen=True, slots=True)
class ReplyFault:
    """What happens to one reply, and at which point of it: a stage, or after a token was sent."""

    action: Action
    stage: str
    token: int | None


@dataclass(slots=True)
class Faults:
    """What goes wrong from now on; the default is nothing.

    * ``die_at_token``: the process exits right after a request has sent its k-th token, counted from now.
    * ``die_at``: it exits at this point of a reply: before_headers, after_headers, after_body or token:17.
    * ``hang``: the engine makes no more progress; requests, and ``/health`` unless it lies, never answer.
    * ``hang_at``: a reply stops at before_headers, after_headers or token:17; everything else goes on.
    * ``cut_at``: the connection is closed at before_headers, after_headers, half (of the body, or in the middle of the
      first event) or token:17.
    * ``slow``: every duration times this factor.
    * ``status``: every ``/v1`` request is answered with it.
    * ``times``: how many ``/v1`` requests the one of ``status``, ``die_at``, ``hang_at`` and ``cut_at`` meets; all.
    * ``lie_health``: ``/health`` says 200 whatever happens. ``unhealthy``: it says 503 although all is well.
    * ``fail_transfers``: reads of KV blocks held here fail.
    * ``no_adapters``: no adapter that is to be loaded is found.
    * ``full_tiers``: KV cache tiers take no more blocks. ``fail_loads``: loads from them fail when they would end.
      ``slow_loads``: loads take this factor longer.
    """

    die_at_token: int | None = None
    die_at: str | None = None
    hang: bool = False
    hang_at: str | None = None
    cut_at: str | None = None
    slow: float = 1.0
    status: int | None = None
    times: int | None = None
    lie_health: bool = False
    unhealthy: bool = False
    fail_transfers: bool = False
    no_adapters: bool = False
    full_tiers: bool = False
    fail_loads: bool = False
    slow_loads: float = 1.0

    def answered_with(self) -> int | None:
        """Return the status the next ``/v1`` request gets instead of being served, and count it."""
        if self.status is None or not self._counted():
            return None
        return self.status

    def of_reply(self) -> ReplyFault | None:
        """Return the fault that meets the next reply, and count it."""
        for action, at in (("die", self.die_at), ("hang", self.hang_at), ("cut", self.cut_at)):
            if at is not None and self._counted():
                found = _TOKEN.fullmatch(at)
                return ReplyFault(action, at, int(found[1]) if found else None)  # type: ignore[arg-type]
        return None

    def _counted(self) -> bool:
        if self.times == 0:
            return False
        if self.times is not None:
            self.times -= 1
        return True


def faults_from_json(body: object) -> Faults:
    """Read a fault description; ``{}`` means none.

    Raises:
        FaultError: a field is unknown or has a value that cannot be arranged.
    """
    if not isinstance(body, Mapping):
        raise FaultError("the faults: a JSON object is needed")
    known = Faults.__dataclass_fields__
    unknown = sorted(str(key) for key in body if key not in known)
    if unknown:
        raise FaultError(f"{unknown[0]}: unknown fault; use one of {', '.join(known)}")
    for name in _SWITCHES:
        if name in body and not isinstance(body[name], bool):
            raise FaultError(f"{name}: true or false is needed")
    for name, least, most in (("die_at_token", 1, 10**9), ("times", 1, 10**9), ("status", 400, 599)):
        number = body.get(name)
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most
        ):
            raise FaultError(f"{name}: a whole number from {least} to {most} is needed")
    for name in ("slow", "slow_loads"):
        factor = body.get(name, 1.0)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1e6:
            raise FaultError(f"{name}: a factor above 0 is needed")
    for action, stages in _STAGES.items():
        at = body.get(f"{action}_at")
        if at is not None and at not in stages and not (isinstance(at, str) and _TOKEN.fullmatch(at)):
            raise FaultError(f"{action}_at: one of {', '.join(stages)} or token:17 is needed")
    counted = [name for name in ("status", "die_at", "hang_at", "cut_at") if body.get(name) is not None]
    if len(counted) > 1:
        raise FaultError(f"{counted[1]}: not together with {counted[0]}; send one after the other")
    return Faults(**dict(body))
