"""The ledger of a rollout, which outlives the process: the plan to return to, the canary, and the plans given up."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from weft_core.plan import canonical_json, content_hash
from weft_operator.api.objects import timestamp
from weft_operator.rollout.groups import GroupState, GroupTarget

RefusalReason = Literal["Unschedulable", "NeverReady", "NoFeasibleStep", "CanaryFailed"]

CanaryKind = Literal["Share", "Whole"]
"""A share of new sessions goes to workers of the new plan beside the old ones; or all do, for there is no other way."""

CanaryPhase = Literal["Running", "Passed", "Failed", "RolledBack"]
"""Not judged yet; carried out further; on the way back, and back at the plan before."""

MAX_REFUSALS = 8
"""A replan may find several plans for one question in turn; more than these are forgotten, oldest first."""

_HASH_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Refusal:
    """A plan that was given up on the way: its groups, the question it answered, why, and when."""

    groups: tuple[GroupTarget, ...]
    question: str
    reason: RefusalReason
    message: str
    at: datetime

    @property
    def hash(self) -> str:
        """Name the plan that was given up."""
        return target_hash(self.groups)


@dataclass(frozen=True, slots=True)
class CanaryTrial:
    """The canary of a plan, named by its hash; ``since``: since when all workers for it are ready.

    ``message`` says why it passed or failed.
    """

    plan: str
    kind: CanaryKind
    since: datetime | None = None
    state: CanaryPhase = "Running"
    message: str = ""


@dataclass(frozen=True, slots=True)
class Ledger:
    """``base`` is the last plan that was carried out to its end; empty before the first.

    ``plan`` is the name under which all else of that plan is kept, "" where it has none: workers alone do not tell one
    plan from another one with other rules.
    """

    base: tuple[GroupTarget, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    trial: CanaryTrial | None = None
    plan: str = ""

    def refusal_of(self, target: Iterable[GroupTarget], question: str) -> Refusal | None:
        """Return why a plan was given up, None where it was not, or where it was for another question."""
        name = target_hash(target)
        return next((one for one in self.refusals if one.hash == name and one.question == question), None)

    def refusing(self, refusal: Refusal) -> "Ledger":
        """Return the ledger with one more plan given up; what answered other questions is forgotten."""
        kept = [one for one in self.refusals if one.question == refusal.question and one.hash != refusal.hash]
        return replace(self, refusals=(*kept, refusal)[-MAX_REFUSALS:])


def opened(ledger: Ledger | None, groups: Iterable[GroupState], question: str) -> Ledger:
    """Return the ledger to go on with; of a service that has none yet, what is asked of its groups is the old plan."""
    if ledger is None:
        asked = [target_of(group, group.asked) for group in groups if group.asked]
        return Ledger(base=tuple(sorted(asked, key=lambda group: group.key)))
    return replace(ledger, refusals=tuple(one for one in ledger.refusals if one.question == question))


def target_of(group: GroupState, replicas: int) -> GroupTarget:
    """Return a living group as one of a plan."""
    return GroupTarget(
        key=group.key,
        role=group.role,
        degree=group.degree,
        pool=group.pool,
        revision=group.revision,
        replicas=replicas,
    )


def target_hash(target: Iterable[GroupTarget]) -> str:
    """Name a plan by its groups: their keys, which stand for template and pool, and how many workers each has."""
    named = sorted([group.key, group.replicas] for group in target if group.replicas)
    return content_hash(named, _HASH_DIGITS)


def ledger_json(ledger: Ledger) -> str:
    """Return the text that is kept of a ledger."""
    return canonical_json(
        {
            "base": [asdict(group) for group in ledger.base],
            "refusals": [
                {
                    "groups": [asdict(group) for group in one.groups],
                    "question": one.question,
                    "reason": one.reason,
                    "message": one.message,
                    "at": _text(one.at),
                }
                for one in ledger.refusals
            ],
            **({} if ledger.trial is None else {"trial": _trial_json(ledger.trial)}),
            **({"plan": ledger.plan} if ledger.plan else {}),
        }
    )


def read_ledger(text: str | None) -> Ledger | None:
    """Read what was kept; None where there is nothing, or nothing that can be read: then what runs is the old plan."""
    if not text:
        return None
    try:
        body = json.loads(text)
        return Ledger(
            base=tuple(_group(item) for item in body["base"]),
            refusals=tuple(_refusal(item) for item in body["refusals"]),
            trial=_trial(body["trial"]) if "trial" in body else None,
            plan=str(body.get("plan", "")),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _refusal(body: Mapping[str, Any]) -> Refusal:
    if body["reason"] not in get_args(RefusalReason):
        raise ValueError("unknown reason")
    return Refusal(
        groups=tuple(_group(item) for item in body["groups"]),
        question=str(body["question"]),
        reason=body["reason"],
        message=str(body["message"]),
        at=datetime.fromisoformat(body["at"]).astimezone(UTC),
    )


def _trial_json(trial: CanaryTrial) -> dict[str, Any]:
    return {**asdict(trial), "since": None if trial.since is None else _text(trial.since)}


def _trial(body: Mapping[str, Any]) -> CanaryTrial:
    if body["kind"] not in get_args(CanaryKind) or body["state"] not in get_args(CanaryPhase):
        raise ValueError("unknown kind or state")
    since = body["since"]
    return CanaryTrial(
        plan=str(body["plan"]),
        kind=body["kind"],
        since=None if since is None else datetime.fromisoformat(since).astimezone(UTC),
        state=body["state"],
        message=str(body["message"]),
    )


def _text(moment: datetime) -> str:
    return timestamp(moment)


def _group(body: Mapping[str, Any]) -> GroupTarget:
    group = GroupTarget(**body)
    if group.role not in ("prefill", "decode") or group.degree < 1 or group.replicas < 0:
        raise ValueError("not a group of a plan")
    return group
