"""Read and write cost profiles as plain JSON objects: the body of a CostProfile's ``spec``.

Reading refuses what would poison every later decision (NaN, negative or missing figures) and
names the field; writing and reading again gives the same profile.
"""

import math
from collections.abc import Mapping, Sequence
from typing import cast

from weft_core.cost import (
    LINKS,
    CostProfile,
    CostProfileError,
    DecodePiece,
    DegreeCosts,
    FitError,
    Link,
    PrefillPiece,
    TransferCost,
    with_chunk_costs,
)

Json = Mapping[str, object]


def profile_to_json(profile: CostProfile) -> dict[str, object]:
    """Return the profile as a JSON-ready dict with camelCase keys, in a stable order."""
    return {
        "model": profile.model,
        "gpu": profile.gpu,
        "engine": profile.engine,
        "kvBytesPerToken": profile.kv_bytes_per_token,
        "degrees": [_degree_to_json(degree, costs) for degree, costs in sorted(profile.degrees.items())],
        "transfers": [
            {
                "source": s,
                "destination": d,
                "link": link,
                "alpha": cost.alpha,
                "perToken": cost.per_token,
                **({"fit": _fit_to_json(cost.fit)} if cost.fit else {}),
            }
            for (s, d, link), cost in sorted(profile.transfers.items())
        ],
        "provenance": dict(sorted(profile.provenance.items())),
    }


def _degree_to_json(degree: int, costs: DegreeCosts) -> dict[str, object]:
    body: dict[str, object] = {
        "degree": degree,
        "weightBytesPerGpu": costs.weight_bytes_per_gpu,
        "kvCapacityTokens": costs.kv_capacity_tokens,
        "prefill": [
            {
                "alpha": p.alpha,
                "perToken": p.per_token,
                "perPair": p.per_pair,
                "perContextToken": p.per_context_token,
            }
            for p in costs.prefill
        ],
        "decode": [_decode_piece_to_json(p) for p in costs.decode],
    }
    fits = {"prefill": costs.prefill_fit, "step": costs.step_fit}
    known = {name: _fit_to_json(fit) for name, fit in fits.items() if fit is not None}
    return body | ({"fit": known} if known else {})


def _fit_to_json(fit: FitError) -> dict[str, object]:
    return {"median": fit.median, "p95": fit.p95, "points": fit.points}


def _decode_piece_to_json(piece: DecodePiece) -> dict[str, object]:
    body: dict[str, object] = {
        "alpha": piece.alpha,
        "perSequence": piece.per_sequence,
        "perContextToken": piece.per_context_token,
        "perChunkToken": piece.per_chunk_token,
        "perChunkPair": piece.per_chunk_pair,
        "perChunkContext": piece.per_chunk_context,
    }
    if piece.experts_seconds > 0:  # only a mixture of experts has these two
        body |= {"expertsSeconds": piece.experts_seconds, "expertShare": piece.expert_share}
    return body


def profile_from_json(body: Json) -> CostProfile:
    """Build a profile from its JSON form; mixed steps that it does not tell of are estimated from its prefill regimes.

    Raises:
        CostProfileError: a field is missing, of the wrong type, not finite or negative.
    """
    degrees: dict[int, DegreeCosts] = {}
    for i, row in enumerate(_rows(body, "degrees")):
        where = f"degrees[{i}]"
        degree = _whole(row, "degree", where)
        if degree in degrees:
            raise CostProfileError(f"{where}.degree: degree {degree} appears twice; keep one")
        degrees[degree] = _degree_from_json(row, where)
    transfers: dict[tuple[int, int, Link], TransferCost] = {}
    for i, row in enumerate(_rows(body, "transfers")):
        where = f"transfers[{i}]"
        link = row.get("link")
        if link not in LINKS:
            raise CostProfileError(f"{where}.link: {link!r} is not a link; use {' or '.join(LINKS)}")
        key = (_whole(row, "source", where), _whole(row, "destination", where), link)
        transfers[key] = TransferCost(
            alpha=_number(row, "alpha", where), per_token=_number(row, "perToken", where), fit=_fit(row, "fit", where)
        )
    provenance = body.get("provenance") or {}
    if not isinstance(provenance, Mapping):
        raise CostProfileError("provenance: must be an object of strings")
    return CostProfile(
        model=_text(body, "model"),
        gpu=_text(body, "gpu"),
        engine=_text(body, "engine"),
        kv_bytes_per_token=_whole(body, "kvBytesPerToken", ""),
        degrees=degrees,
        transfers=transfers,
        provenance={str(k): str(v) for k, v in provenance.items()},
    )


def _degree_from_json(row: Json, where: str) -> DegreeCosts:
    prefill = tuple(
        PrefillPiece(
            alpha=_number(p, "alpha", at),
            per_token=_number(p, "perToken", at),
            per_pair=_number(p, "perPair", at),
            per_context_token=_number(p, "perContextToken", at),
        )
        for at, p in ((f"{where}.prefill[{j}]", p) for j, p in enumerate(_rows(row, "prefill", where)))
    )
    rows = _rows(row, "decode", where)
    fits = row.get("fit") or {}
    if not isinstance(fits, Mapping):
        raise CostProfileError(f"{where}.fit: must be an object with prefill and step")
    decode = tuple(_decode_piece_from_json(p, f"{where}.decode[{j}]") for j, p in enumerate(rows))
    mixed = [any(key in p for key in _CHUNK_FIELDS) for p in rows]
    if any(mixed) and not all(mixed):
        at = f"{where}.decode[{mixed.index(False)}]"
        raise CostProfileError(f"{at}: lacks {', '.join(_CHUNK_FIELDS)}; give them in every row of decode, or in none")
    return DegreeCosts(
        prefill=prefill,
        decode=decode if all(mixed) else with_chunk_costs(decode, prefill),
        weight_bytes_per_gpu=_whole(row, "weightBytesPerGpu", where),
        kv_capacity_tokens=_whole(row, "kvCapacityTokens", where),
        prefill_fit=_fit(fits, "prefill", f"{where}.fit"),
        step_fit=_fit(fits, "step", f"{where}.fit"),
    )


_CHUNK_FIELDS = ("perChunkToken", "perChunkPair", "perChunkContext")


def _decode_piece_from_json(row: Json, at: str) -> DecodePiece:
    mixed = any(key in row for key in _CHUNK_FIELDS)
    return DecodePiece(
        alpha=_number(row, "alpha", at),
        per_sequence=_number(row, "perSequence", at),
        per_context_token=_number(row, "perContextToken", at),
        experts_seconds=_number(row, "expertsSeconds", at) if "expertsSeconds" in row else 0.0,
        expert_share=_share(row, "expertShare", at) if "expertsSeconds" in row else 0.0,
        per_chunk_token=_number(row, "perChunkToken", at) if mixed else 0.0,
        per_chunk_pair=_number(row, "perChunkPair", at) if mixed else 0.0,
        per_chunk_context=_number(row, "perChunkContext", at) if mixed else 0.0,
    )


def _fit(row: Json, key: str, where: str) -> FitError | None:
    fit = row.get(key)
    if fit is None:
        return None
    at = _path(where, key)
    if not isinstance(fit, Mapping):
        raise CostProfileError(f"{at}: must be an object with median, p95 and points")
    return FitError(median=_number(fit, "median", at), p95=_number(fit, "p95", at), points=_whole(fit, "points", at))


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _rows(body: Json, key: str, where: str = "") -> list[Json]:
    rows = body.get(key)
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
        raise CostProfileError(f"{_path(where, key)}: at least one row is needed")
    for j, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise CostProfileError(f"{_path(where, key)}[{j}]: must be an object")
    return cast(list[Json], list(rows))


def _number(row: Json, key: str, where: str) -> float:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CostProfileError(f"{_path(where, key)}: a number is needed, got {value!r}")
    if not math.isfinite(value) or value < 0:
        raise CostProfileError(f"{_path(where, key)}: {value!r} is not a finite figure of 0 or more")
    return float(value)


def _share(row: Json, key: str, where: str) -> float:
    value = _number(row, key, where)
    if not 0 < value <= 1:
        raise CostProfileError(f"{_path(where, key)}: {value!r} is not a share above 0 and up to 1")
    return value


def _whole(row: Json, key: str, where: str) -> int:
    value = _number(row, key, where)
    if value != int(value) or value < 1:
        raise CostProfileError(f"{_path(where, key)}: {value!r} is not a whole number of 1 or more")
    return int(value)


def _text(body: Json, key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value:
        raise CostProfileError(f"{key}: a non-empty text is needed")
    return value
