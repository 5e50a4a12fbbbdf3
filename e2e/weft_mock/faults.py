"""Say how the engine misbehaves on purpose."""

from collections.abc import Mapping
from dataclasses import dataclass


class FaultError(ValueError):
    """Report a fault nobody can arrange; the message names the field and the fix."""


@dataclass(slots=True)
class Faults:
    """What goes wrong from now on; the default is nothing.

    * ``die_at_token``: the process exits right after a request has sent its k-th token, counted from now.
    * ``hang``: the engine makes no more progress; requests, and ``/health`` unless it lies, never answer.
    * ``slow``: every duration times this factor.
    * ``status``: every ``/v1`` request is answered with it, or the next ``times`` of them.
    * ``lie_health``: ``/health`` says 200 whatever happens. ``unhealthy``: it says 503 although all is well.
    * ``fail_transfers``: reads of KV blocks held here fail.
    """

    die_at_token: int | None = None
    hang: bool = False
    slow: float = 1.0
    status: int | None = None
    times: int | None = None
    lie_health: bool = False
    unhealthy: bool = False
    fail_transfers: bool = False

    def answered_with(self) -> int | None:
        """Return the status the next ``/v1`` request gets instead of being served, and count it."""
        if self.status is None or self.times == 0:
            return None
        if self.times is not None:
            self.times -= 1
        return self.status


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
    for name in ("hang", "lie_health", "unhealthy", "fail_transfers"):
        if name in body and not isinstance(body[name], bool):
            raise FaultError(f"{name}: true or false is needed")
    for name, least, most in (("die_at_token", 1, 10**9), ("times", 1, 10**9), ("status", 400, 599)):
        number = body.get(name)
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most
        ):
            raise FaultError(f"{name}: a whole number from {least} to {most} is needed")
    slow = body.get("slow", 1.0)
    if isinstance(slow, bool) or not isinstance(slow, int | float) or not 0 < slow < 1e6:
        raise FaultError("slow: a factor above 0 is needed")
    return Faults(**dict(body))
