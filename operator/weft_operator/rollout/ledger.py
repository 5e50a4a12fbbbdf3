"""The ledger of a rollout, stored in the plan's ConfigMap: the last complete plan, the canary, and failed plans."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from weft_core.layouts import WORKER_ROLES, WorkerRole
from weft_core.parallelism import Degree, degree_from_json, degree_to_json
from weft_core.plan import canonical_json, content_hash
from weft_operator.api.objects import timestamp
from weft_operator.rollout.groups import GroupState, GroupTarget

RefusalReason = Literal["Unschedulable", "NeverReady", "NoFeasibleStep", "CanaryFailed"]

CanaryKind = Literal["Share", "Whole"]
"""Share: a share of new sessions goes to the new plan's workers, beside the old ones. Whole: all sessions do."""

CanaryPhase = Literal["Running", "Passed", "Failed", "RolledBack"]
"""Running: not decided. Passed: the rollout goes on. Failed: the rollback runs. RolledBack: it is complete."""

MAX_REFUSALS = 8
"""Replanning may fail with several plans for the same inputs; of more than these, the oldest are dropped."""

_HASH_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Refusal:
    """An aborted rollout: the plan's groups, the hash of the inputs it was made for, why it was aborted, and when."""

    groups: tuple[GroupTarget, ...]
    inputs_hash: str
    reason: RefusalReason
    message: str
    at: datetime

    @property
    def hash(self) -> str:
        """Return the hash of the plan's groups."""
        return target_hash(self.groups)


@dataclass(frozen=True, slots=True)
class CanaryRun:
    """The canary of a plan, identified by the plan's hash.

    ``since`` is the time at which all its workers were ready; ``message`` says why it passed or failed.
    """

    plan: str
    kind: CanaryKind
    since: datetime | None = None
    state: CanaryPhase = "Running"
    message: str = ""


@dataclass(frozen=True, slots=True)
class Ledger:
    """``base`` is the last plan whose rollout was completed; empty before the first.

    ``plan`` is the name of that plan's revision, "" where it has none. Plans with the same workers can differ in
    routing rules, so the groups alone do not identify a plan.
    """

    base: tuple[GroupTarget, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    canary: CanaryRun | None = None
    plan: str = ""

    def refusal_of(self, target: Iterable[GroupTarget], inputs_hash: str) -> Refusal | None:
        """Return the refusal of a plan for these inputs; None where there is none."""
        name = target_hash(target)
        return next((one for one in self.refusals if one.hash == name and one.inputs_hash == inputs_hash), None)

    def with_refusal(self, refusal: Refusal) -> "Ledger":
        """Return the ledger with one more refusal; those for other inputs are dropped."""
        kept = [one for one in self.refusals if one.inputs_hash == refusal.inputs_hash and one.hash != refusal.hash]
        return replace(self, refusals=(*kept, refusal)[-MAX_REFUSALS:])


def current_ledger(ledger: Ledger | None, groups: Iterable[GroupState], inputs_hash: str) -> Ledger:
    """Return the ledger for these inputs; for a service without one, the groups' current replicas are the old plan."""
    if ledger is None:
        asked = [target_of(group, group.asked) for group in groups if group.asked]
        return Ledger(base=tuple(sorted(asked, key=lambda group: group.key)))
    return replace(ledger, refusals=tuple(one for one in ledger.refusals if one.inputs_hash == inputs_hash))


def target_of(group: GroupState, replicas: int) -> GroupTarget:
    """Return an existing group as a target with so many replicas."""
    return GroupTarget(
        key=group.key,
        role=group.role,
        degree=group.degree,
        pool=group.pool,
        revision=group.revision,
        replicas=replicas,
    )


def target_hash(target: Iterable[GroupTarget]) -> str:
    """Return a plan's hash: of the keys of its groups, which stand for template and pool, and their replicas."""
    named = sorted([group.key, group.replicas] for group in target if group.replicas)
    return content_hash(named, _HASH_DIGITS)


def workers_of(target: Iterable[GroupTarget]) -> Mapping[tuple[WorkerRole, Degree, str, str], int]:
    """Return how many workers of each role, degree, pool and revision a plan has, whatever its groups are named."""
    found: dict[tuple[WorkerRole, Degree, str, str], int] = {}
    for group in target:
        if group.replicas:
            kind = (group.role, group.degree, group.pool, group.revision)
            found[kind] = found.get(kind, 0) + group.replicas
    return found


def ledger_json(ledger: Ledger) -> str:
    """Return the ledger as the JSON text that is stored."""
    return canonical_json(
        {
            "base": [_group_json(group) for group in ledger.base],
            "refusals": [
                {
                    "groups": [_group_json(group) for group in one.groups],
                    "inputs_hash": one.inputs_hash,
                    "reason": one.reason,
                    "message": one.message,
                    "at": _text(one.at),
                }
                for one in ledger.refusals
            ],
            **({} if ledger.canary is None else {"canary": _canary_json(ledger.canary)}),
            **({"plan": ledger.plan} if ledger.plan else {}),
        }
    )


def _group_json(group: GroupTarget) -> dict[str, Any]:
    return {**asdict(group), "degree": degree_to_json(group.degree)}


def read_ledger(text: str | None) -> Ledger | None:
    """Read a stored ledger; None without a valid one: then the running groups are the old plan."""
    if not text:
        return None
    try:
        body = json.loads(text)
        return Ledger(
            base=tuple(_group(item) for item in body["base"]),
            refusals=tuple(_refusal(item) for item in body["refusals"]),
            canary=_canary(body["canary"]) if "canary" in body else None,
            plan=str(body.get("plan", "")),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _refusal(body: Mapping[str, Any]) -> Refusal:
    if body["reason"] not in get_args(RefusalReason):
        raise ValueError("unknown reason")
    return Refusal(
        groups=tuple(_group(item) for item in body["groups"]),
        inputs_hash=str(body["inputs_hash"]),
        reason=body["reason"],
        message=str(body["message"]),
        at=datetime.fromisoformat(body["at"]).astimezone(UTC),
    )


def _canary_json(canary: CanaryRun) -> dict[str, Any]:
    return {**asdict(canary), "since": None if canary.since is None else _text(canary.since)}


def _canary(body: Mapping[str, Any]) -> CanaryRun:
    if body["kind"] not in get_args(CanaryKind) or body["state"] not in get_args(CanaryPhase):
        raise ValueError("unknown kind or state")
    since = body["since"]
    return CanaryRun(
        plan=str(body["plan"]),
        kind=body["kind"],
        since=None if since is None else datetime.fromisoformat(since).astimezone(UTC),
        state=body["state"],
        message=str(body["message"]),
    )


def _text(moment: datetime) -> str:
    return timestamp(moment)


def _group(body: Mapping[str, Any]) -> GroupTarget:
    group = GroupTarget(**{**body, "degree": degree_from_json(body.get("degree"))})
    if group.role not in WORKER_ROLES or group.replicas < 0:
        raise ValueError("not a group of a plan")
    return group
