"""The role of a worker, and how it changes while the worker runs.

A worker's role is an assignment: ``prefill`` (prefills for other workers' sessions), ``decode`` (decodes its own
sessions) or ``both``. ``RoleState`` is the state machine of one worker: the role in force, which it announces, and the
role it was assigned last. Giving up sessions takes time, everything else does not. Pure.
"""

from dataclasses import dataclass, replace

from weft_core.layouts import WORKER_ROLES, Role, WorkerRole


def parse_role(text: str) -> WorkerRole | None:
    """Return the role that a word names, white space around it ignored; None where it names none."""
    word = text.strip()
    return word if word in WORKER_ROLES else None


def has_duty(role: str, duty: Role) -> bool:
    """Return whether a worker of a role has a duty."""
    return role in (duty, "both")


@dataclass(frozen=True, slots=True)
class RoleState:
    """The role of one worker: ``role`` is in force, ``assigned`` came last, ``since`` a time of the caller's clock."""

    role: WorkerRole
    assigned: WorkerRole
    since: float

    @property
    def leaving(self) -> bool:
        """Return whether the worker hands over its sessions: it is not to decode any more, and does so still."""
        return self.role != self.assigned

    def assign(self, role: WorkerRole, now: float) -> "RoleState":
        """Return the state after an assignment; the last one wins, also over one that is still carried out.

        A role without the duty ``decode`` is in force once the sessions are handed over, any other one at once.
        """
        if role == self.assigned:
            return self
        if has_duty(self.role, "decode") and not has_duty(role, "decode"):
            return replace(self, assigned=role, since=now)
        return RoleState(role, role, now)

    def handed_over(self) -> "RoleState":
        """Return the state once the sessions are handed over, or are waited for no longer."""
        return replace(self, role=self.assigned)
