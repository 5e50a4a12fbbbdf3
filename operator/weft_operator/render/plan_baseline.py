"""The baseline of the active plan: the workload it was made for, since when it runs, its hold, and a proposal."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from weft_core.cost import CostProfileError
from weft_core.plan import Plan, PlanError, canonical_json, content_hash, plan_from_json, plan_to_json
from weft_core.profile_json import profile_from_json
from weft_core.validity import Validity, validity_from_json, validity_to_json
from weft_operator.api.objects import timestamp

HASH_DIGITS = 12

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan that waits for approval, with the data of its future record.

    ``request_hash`` is the spec's question that it answers; ``workload`` the observed one it was made for, in a
    request's form, None for that of the spec; ``cause`` says in one clause why.
    """

    hash: str
    plan: Plan
    profile: Json
    request_hash: str
    cause: str
    made_at: datetime
    profiles: Mapping[str, Json] = field(default_factory=dict)
    workload: Json | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """The hold of a plan after a rollback, although another plan was made for the traffic.

    ``validity`` is the traffic of the plan whose place it took: while what is seen fits it, the hold stands. ``token``
    is the value of the annotation that asked for it, "" where the operator went back by itself; ``cause`` says why.
    """

    cause: str
    token: str = ""
    validity: Validity | None = None


@dataclass(frozen=True, slots=True)
class PlanBaseline:
    """What the active plan was made for, and the last decision about replacing it.

    ``workload`` and ``cause`` as in a proposal; ``changed_at`` is when the plan came into force, ``judged_at`` when
    another one was last weighed against it, with the ``verdict`` (reason, message) on traffic with the figures
    ``judged``. ``approved`` is the proposal whose approval was carried out, ``rolled_back`` the annotation that asked
    for an older plan and was carried out. ``scaled_to_zero_at`` is since when no worker runs because the service is
    idle; the plan stays the one that it comes back to.
    """

    workload: Json | None = None
    cause: str = ""
    changed_at: datetime | None = None
    judged_at: datetime | None = None
    verdict: tuple[str, str] = ("", "")
    approved: str = ""
    proposal: Proposal | None = None
    rolled_back: str = ""
    hold: Hold | None = None
    judged: Mapping[str, float] | None = None
    scaled_to_zero_at: datetime | None = None


def proposal_hash(plan: Plan, *, instead_of: Plan, request_hash: str, made_at: datetime) -> str:
    """Return the hash of a proposal; the same change, proposed again later, has another one.

    So an approval is of what a person saw, once: it cannot carry out a later proposal.
    """
    body = plan_to_json(plan)
    shown = {key: body.get(key) for key in ("revision", "layout", "policy")}
    named = {**shown, "insteadOf": instead_of.revision, "request": request_hash, "madeAt": time_text(made_at)}
    return content_hash(named, HASH_DIGITS)


def baseline_json(baseline: PlanBaseline) -> str | None:
    """Return the text for the record's ConfigMap, None when the baseline is empty."""
    proposal = baseline.proposal
    body = {
        "workload": baseline.workload,
        "cause": baseline.cause,
        "changedAt": time_text(baseline.changed_at),
        "judgedAt": time_text(baseline.judged_at),
        "verdict": list(baseline.verdict) if any(baseline.verdict) else None,
        "judged": baseline.judged,
        "asleepAt": time_text(baseline.scaled_to_zero_at),
        "approved": baseline.approved,
        "rolledBack": baseline.rolled_back,
        "hold": None
        if baseline.hold is None
        else {
            "cause": baseline.hold.cause,
            "token": baseline.hold.token,
            "validity": validity_to_json(baseline.hold.validity),
        },
        "proposal": None
        if proposal is None
        else {
            "hash": proposal.hash,
            "plan": plan_to_json(proposal.plan),
            "profile": proposal.profile,
            "profiles": proposal.profiles,
            "requestHash": proposal.request_hash,
            "workload": proposal.workload,
            "cause": proposal.cause,
            "madeAt": time_text(proposal.made_at),
        },
    }
    kept = {key: value for key, value in body.items() if value not in (None, "")}
    return canonical_json(kept) if kept else None


def read_baseline(text: str | None) -> PlanBaseline:
    """Read the stored baseline; damaged parts are ignored, and the plan itself stays."""
    if not text:
        return PlanBaseline()
    try:
        body = json.loads(text)
        reason, message = body.get("verdict", ("", ""))
        return PlanBaseline(
            workload=_object(body.get("workload")),
            cause=str(body.get("cause", "")),
            changed_at=_moment(body.get("changedAt")),
            judged_at=_moment(body.get("judgedAt")),
            verdict=(str(reason), str(message)),
            approved=str(body.get("approved", "")),
            proposal=_proposal(body["proposal"]) if "proposal" in body else None,
            rolled_back=str(body.get("rolledBack", "")),
            hold=_hold(body["hold"]) if "hold" in body else None,
            judged=_figures(body.get("judged")),
            scaled_to_zero_at=_moment(body.get("asleepAt")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, PlanError, CostProfileError):
        return PlanBaseline()


def _proposal(body: Json) -> Proposal:
    for profile in (body["profile"], *body["profiles"].values()):
        profile_from_json(profile)
    made_at = _moment(body["madeAt"])
    if made_at is None:
        raise ValueError("madeAt is missing")
    return Proposal(
        hash=str(body["hash"]),
        plan=plan_from_json(body["plan"]),
        profile=body["profile"],
        profiles=dict(body["profiles"]),
        request_hash=str(body["requestHash"]),
        workload=_object(body.get("workload")),
        cause=str(body["cause"]),
        made_at=made_at,
    )


def _hold(body: Json) -> Hold:
    return Hold(str(body["cause"]), str(body["token"]), validity_from_json(body, "validity"))


def _figures(value: object) -> Mapping[str, float] | None:
    found = _object(value)
    return None if found is None else {name: float(figure) for name, figure in found.items()}


def _object(value: object) -> Json | None:
    if value is not None and not isinstance(value, Mapping):
        raise TypeError("an object is expected")
    return value


def time_text(moment: datetime | None) -> str | None:
    """Return a moment as Kubernetes writes it."""
    return None if moment is None else timestamp(moment)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).astimezone(UTC)
