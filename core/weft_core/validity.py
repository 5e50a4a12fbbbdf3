"""The traffic a plan was made for, and how much more or less of it the plan is still right for."""

from dataclasses import dataclass

from weft_core.json_fields import Json
from weft_core.plan_fields import FIELDS


@dataclass(frozen=True, slots=True)
class Validity:
    """What a plan holds for: means over all sessions, and the range of sessions per second.

    Above ``rate_high`` the SLO is no longer promised; below ``rate_low`` a smaller plan might do. Tokens, seconds.
    """

    arrival_rate: float
    rate_low: float
    rate_high: float
    rounds: float
    first_prompt: float
    increment: float
    decode: float
    gap_s: float


_NAMES = {
    "arrivalRate": "arrival_rate",
    "rateLow": "rate_low",
    "rateHigh": "rate_high",
    "rounds": "rounds",
    "firstPrompt": "first_prompt",
    "increment": "increment",
    "decode": "decode",
    "gap": "gap_s",
}


def validity_to_json(validity: Validity | None) -> dict[str, object] | None:
    """Return the JSON-ready form; None stays None."""
    return None if validity is None else {name: getattr(validity, field) for name, field in _NAMES.items()}


def validity_from_json(body: Json, key: str) -> Validity | None:
    """Read the part of a plan; None where a plan stored by an older version has none.

    Raises:
        PlanError: a field is missing or not a number.
    """
    found = FIELDS.part(body, key)
    return (
        None
        if found is None
        else Validity(**{field: FIELDS.required(found, name, key) for name, field in _NAMES.items()})
    )
