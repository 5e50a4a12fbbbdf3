"""Which worker has which role, where roles can change, from the wanted numbers and the workers' labels. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft_core.layouts import WORKER_ROLES, WorkerRole, duties_of
from weft_operator.api.worker_group import RoleCounts

_FILL_ORDER: tuple[WorkerRole, ...] = ("decode", "both", "prefill")
"""Decode first: without a decode worker nothing is served."""
_SEPARATOR = "/"

Counts = Mapping[WorkerRole, int]


@dataclass(frozen=True, slots=True)
class Assignment:
    """The roles of the workers to keep, by name, and those of the workers to create."""

    kept: Mapping[str, WorkerRole]
    new: tuple[WorkerRole, ...]


def counts_of(roles: RoleCounts | None) -> dict[WorkerRole, int]:
    """Return the numbers of workers by role; all 0 where there are none."""
    return {role: 0 if roles is None else int(getattr(roles, role)) for role in WORKER_ROLES}


def split_roles(roles: Counts, replicas: int) -> dict[WorkerRole, int]:
    """Return how many workers have each role: ``roles``, or in the same proportion where their sum is another number.

    Each role with workers keeps one as long as there are enough, decode first. Without any, all decode.
    """
    known = {role: max(0, roles.get(role, 0)) for role in WORKER_ROLES}
    total = sum(known.values())
    if total == replicas:
        return known
    if total == 0:
        return {role: replicas if role == "decode" else 0 for role in WORKER_ROLES}
    wanted = [role for role in _FILL_ORDER if known[role]]
    found = {role: known[role] * replicas // total for role in WORKER_ROLES}
    for role in wanted[:replicas]:
        found[role] = max(1, found[role])
    while sum(found.values()) > replicas:
        several = [role for role in wanted if found[role] > 1] or [[role for role in wanted if found[role]][-1]]
        found[max(several, key=lambda role: found[role] * total - known[role] * replicas)] -= 1
    while sum(found.values()) < replicas:
        found[max(wanted, key=lambda role: known[role] * replicas - found[role] * total)] += 1
    return found


def assign_roles(wanted: Counts, members: Sequence[tuple[str, WorkerRole]]) -> Assignment:
    """Return the roles of existing workers, given with the roles that they have, and of those to create.

    ``members`` are in the order in which to keep them. As many workers as possible keep their role. Of the others the
    first ones switch, to a role that retains a duty of theirs if there is one, and the last ones are not kept.
    """
    left = {role: wanted.get(role, 0) for role in WORKER_ROLES}
    kept: dict[str, WorkerRole] = {}
    surplus: list[tuple[str, WorkerRole]] = []
    for name, role in members:
        if left[role]:
            left[role] -= 1
            kept[name] = role
        else:
            surplus.append((name, role))
    for name, role in surplus:
        free = [one for one in _FILL_ORDER if left[one]]
        if not free:
            break
        to = min(free, key=lambda one: set(duties_of(one)).isdisjoint(duties_of(role)))
        left[to] -= 1
        kept[name] = to
    return Assignment(kept, tuple(role for role in _FILL_ORDER for _ in range(left[role])))


def role_key(group: str, role: WorkerRole) -> str:
    """Return the key of the workers of one role in a group whose workers' roles can change."""
    return f"{group}{_SEPARATOR}{role}"


def group_of(key: str) -> str:
    """Return the name of the WorkerGroup of a key; a group with a fixed role is its own key."""
    return key.partition(_SEPARATOR)[0]


def role_of_key(key: str) -> str:
    """Return the role in a key; "" where it has none."""
    return key.partition(_SEPARATOR)[2]


def is_role_key(key: str) -> bool:
    """Return whether a key names the workers of one role in a group whose workers' roles can change."""
    return _SEPARATOR in key


def role_keys(keys: Iterable[str]) -> dict[str, list[str]]:
    """Return keys by the name of their group, in their order."""
    found: dict[str, list[str]] = {}
    for key in keys:
        found.setdefault(group_of(key), []).append(key)
    return found
