"""The CostProfile that holds what was measured for a service: read, judged and put together. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from weft_core.cost import CostProfileError
from weft_core.profile_json import profile_from_json
from weft_operator.api.cost_profile import CostProfileSpec, DegreeFit
from weft_operator.api.objects import Manifest, annotations_of
from weft_operator.profiling.termination_message import MessageError, unpacked

OF_ANNOTATION = "weft.dev/measured-of"
"""On a measured CostProfile: the hash of model, engine and GPU that it is of (``targets.identity``)."""
TIMES_ANNOTATION = "weft.dev/measured"
"""On a measured CostProfile: by degree when it was measured, by which Job, and who asked for it."""

ASKED_ANNOTATION = "weft.dev/measured-for"
"""On a Job that measures: the word of the person who asked for it, "" for none."""

MOST_MEDIAN = 0.25
MOST_P95 = 0.6
"""Prefills and steps that shapes held out miss by more are not used: plans would be worse than with assumptions."""
MOST_TRANSFER_P95 = 0.5
"""Transfers that miss by more are taken from the profile before."""


@dataclass(frozen=True, slots=True)
class DegreeMeasurement:
    """When a degree was measured, by which Job, and the request of a person that it answers ("" for none)."""

    at: str
    job: str
    asked: str = ""


class NotUsableError(ValueError):
    """Report a measurement that nothing should be planned with, and why."""


def taken(profile: Manifest | None, identity: str) -> dict[int, DegreeMeasurement]:
    """Return what a measured profile holds, by degree; nothing where it is of another model, engine or GPU."""
    if profile is None or annotations_of(profile).get(OF_ANNOTATION) != identity:
        return {}
    try:
        rows = json.loads(annotations_of(profile).get(TIMES_ANNOTATION, "{}"))
        found = {int(degree): DegreeMeasurement(**row) for degree, row in rows.items()}
        return found if all(datetime.fromisoformat(row.at).tzinfo for row in found.values()) else {}
    except (ValueError, TypeError, AttributeError):
        return {}  # an edit by hand; it is measured again


def read(message: str, degree: int) -> dict[str, Any]:
    """Return the profile that a measuring pod told.

    Raises:
        NotUsableError: it told none, or one that predicts badly what was held out.
    """
    try:
        spec = CostProfileSpec.model_validate(unpacked(message)["profile"])
        body = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        profile_from_json(body)
    except (MessageError, ValidationError, CostProfileError) as error:
        raise NotUsableError(str(error).splitlines()[0]) from error
    row = next((row for row in spec.degrees if row.degree == degree), None)
    if row is None:
        raise NotUsableError(f"it holds no figures of degree {degree}")
    fits = row.fit or DegreeFit()
    for what, fit in (("prefills", fits.prefill), ("steps", fits.step)):
        if fit is None:
            raise NotUsableError(f"it does not say how well {what} fit")
        if fit.median > MOST_MEDIAN or fit.p95 > MOST_P95:
            raise NotUsableError(
                f"{what} that were held out are missed by {fit.median:.0%} in the median and {fit.p95:.0%} at P95 "
                f"(at most {MOST_MEDIAN:.0%} and {MOST_P95:.0%} are used)"
            )
    return body


def merged(
    new: Mapping[str, Any], *, degree: int, known: Mapping[str, Any] | None, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the spec of the CostProfile with a degree's new figures.

    ``known`` is the measured profile so far, of the same model, engine and GPU; ``before`` is the profile that the plan
    in force was made from, whose transfers stand in for what nobody timed, or not well enough.
    """
    rows = {row["degree"]: row for row in (known or {}).get("degrees", ())}
    rows[degree] = next(row for row in new["degrees"] if row["degree"] == degree)
    told = "; ".join(f"{name}: {text}" for name, text in sorted((new.get("provenance") or {}).items()))
    provenance = {**(known or {}).get("provenance", {}), f"degree{degree}": told}
    moved = "not measured; they are as in the profile before, or estimated"
    transfers = {_way(item): item for item in before.get("transfers", ()) if _within(item, rows)}
    transfers |= {_way(item): item for item in (known or {}).get("transfers", ()) if "fit" in item}
    for item in new["transfers"]:
        fit = item.get("fit")
        if fit is None:
            transfers.setdefault(_way(item), item)
        elif fit["p95"] <= MOST_TRANSFER_P95:
            transfers[_way(item)] = item
            moved = f"measured; those held out are missed by {fit['median']:.0%} in the median"
        else:
            kept = _way(item) in transfers
            transfers.setdefault(_way(item), {key: value for key, value in item.items() if key != "fit"})
            used = "not used" if kept else "used for want of others"
            moved = (
                f"{used}: those held out are missed by {fit['p95']:.0%} at P95 (at most {MOST_TRANSFER_P95:.0%} are "
                "good enough)"
            )
    provenance[f"transfers{degree}"] = moved
    if ways := (new.get("provenance") or {}).get("transferWays"):
        provenance[f"transferWays{degree}"] = ways  # beside the rest of what was told, which may be cut
    return {
        **{name: new[name] for name in ("model", "gpu", "engine", "kvBytesPerToken")},
        "degrees": [rows[one] for one in sorted(rows)],
        "transfers": [transfers[way] for way in sorted(transfers) if _within(transfers[way], rows)],
        "provenance": {name: str(text)[:1024] for name, text in sorted(provenance.items())[:32]},
    }


def marks_of(identity: str, asked: str) -> dict[str, str]:
    """Return the annotations that say what a Job measures, and for whom."""
    return {OF_ANNOTATION: identity, ASKED_ANNOTATION: asked}


def notes(rows: Mapping[int, DegreeMeasurement], identity: str) -> dict[str, str]:
    """Return the annotations of a measured CostProfile."""
    table = {str(degree): {"at": row.at, "job": row.job, "asked": row.asked} for degree, row in sorted(rows.items())}
    return {OF_ANNOTATION: identity, TIMES_ANNOTATION: json.dumps(table, separators=(",", ":"))}


def _way(transfer: Mapping[str, Any]) -> tuple[int, int, str]:
    return transfer["source"], transfer["destination"], transfer["link"]


def _within(transfer: Mapping[str, Any], degrees: Iterable[int]) -> bool:
    return {transfer["source"], transfer["destination"]} <= set(degrees)
