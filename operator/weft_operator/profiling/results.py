"""The measured CostProfile of a service: results are read, checked and merged. Pure."""

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
"""On a measured CostProfile: the hash of its model, engine and GPU (``targets.identity``)."""
TIMES_ANNOTATION = "weft.dev/measured"
"""On a measured CostProfile: for each degree the time, the Job and the request of its measurement."""

ASKED_ANNOTATION = "weft.dev/measured-for"
"""On a profiling Job: the value of the annotation that requested it, "" for none."""

MOST_MEDIAN = 0.25
MOST_P95 = 0.6
"""Largest errors on held-out shapes of prefills and steps: a worse profile is not used."""
MOST_TRANSFER_P95 = 0.5
"""Largest error of transfers: worse ones are replaced by those of the old profile."""


@dataclass(frozen=True, slots=True)
class DegreeMeasurement:
    """The time and the Job of a degree's measurement, and the person's request that it was for ("" for none)."""

    at: str
    job: str
    asked: str = ""


class NotUsableError(ValueError):
    """Report why a measurement must not be used for plans."""


def taken(profile: Manifest | None, identity: str) -> dict[int, DegreeMeasurement]:
    """Return the measurements in a profile, by degree; none if it is of another model, engine or GPU."""
    if profile is None or annotations_of(profile).get(OF_ANNOTATION) != identity:
        return {}
    try:
        rows = json.loads(annotations_of(profile).get(TIMES_ANNOTATION, "{}"))
        found = {int(degree): DegreeMeasurement(**row) for degree, row in rows.items()}
        return found if all(datetime.fromisoformat(row.at).tzinfo for row in found.values()) else {}
    except (ValueError, TypeError, AttributeError):
        return {}  # edited by hand: measured again


def read(message: str, degree: int) -> dict[str, Any]:
    """Return the profile from a profiling pod's message.

    Raises:
        NotUsableError: there is none, or its error on held-out shapes is too large.
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
    active was made from, whose transfers stand in for what nobody timed, or not well enough.
    """
    rows = {row["degree"]: row for row in (known or {}).get("degrees", ())}
    rows[degree] = next(row for row in new["degrees"] if row["degree"] == degree)
    note = "; ".join(f"{name}: {text}" for name, text in sorted((new.get("provenance") or {}).items()))
    provenance = {**(known or {}).get("provenance", {}), "source": "engine", f"degree{degree}": note}
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
    """Return the annotations of a Job about its measurement."""
    return {OF_ANNOTATION: identity, ASKED_ANNOTATION: asked}


def notes(rows: Mapping[int, DegreeMeasurement], identity: str) -> dict[str, str]:
    """Return the annotations of a measured CostProfile."""
    table = {str(degree): {"at": row.at, "job": row.job, "asked": row.asked} for degree, row in sorted(rows.items())}
    return {OF_ANNOTATION: identity, TIMES_ANNOTATION: json.dumps(table, separators=(",", ":"))}


def _way(transfer: Mapping[str, Any]) -> tuple[int, int, str]:
    return transfer["source"], transfer["destination"], transfer["link"]


def _within(transfer: Mapping[str, Any], degrees: Iterable[int]) -> bool:
    return {transfer["source"], transfer["destination"]} <= set(degrees)
