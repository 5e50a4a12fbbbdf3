"""Read and write cost profiles as plain JSON objects: the body of a CostProfile's ``spec``.

Reading refuses what would poison every later decision (NaN, negative or missing figures) and
names the field; writing and reading again gives the same profile.
"""

from collections.abc import Mapping

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
from weft_core.json_fields import FieldReader, Json, at
from weft_core.parallelism import Degree, degree_to_json

FIELDS = FieldReader(CostProfileError)


def profile_to_json(profile: CostProfile) -> dict[str, object]:
    """Return the profile as a JSON-ready dict with camelCase keys, in a stable order."""
    return {
        "model": profile.model,
        "gpu": profile.gpu,
        "engine": profile.engine,
        "kvBytesPerToken": profile.kv_bytes_per_token,
        "degrees": [costs_to_json(degree, costs) for degree, costs in sorted(profile.degrees.items())],
        "transfers": [
            {
                "source": degree_to_json(s),
                "destination": degree_to_json(d),
                "link": link,
                "alpha": cost.alpha,
                "perToken": cost.per_token,
                **({"fit": _fit_to_json(cost.fit)} if cost.fit else {}),
            }
            for (s, d, link), cost in sorted(profile.transfers.items())
        ],
        "provenance": dict(sorted(profile.provenance.items())),
    }


def costs_to_json(degree: Degree, costs: DegreeCosts) -> dict[str, object]:
    body: dict[str, object] = {
        "degree": degree_to_json(degree),
        "weightBytesPerGpu": costs.weight_bytes_per_gpu,
        "kvCapacityTokens": costs.kv_capacity_tokens,
        "prefill": [_prefill_piece_to_json(p) for p in costs.prefill],
        "decode": [_decode_piece_to_json(p) for p in costs.decode],
    }
    fits = {"prefill": costs.prefill_fit, "step": costs.step_fit}
    known = {name: _fit_to_json(fit) for name, fit in fits.items() if fit is not None}
    return body | ({"fit": known} if known else {})


def _fit_to_json(fit: FitError) -> dict[str, object]:
    return {"median": fit.median, "p95": fit.p95, "points": fit.points}


def _prefill_piece_to_json(piece: PrefillPiece) -> dict[str, object]:
    body: dict[str, object] = {
        "alpha": piece.alpha,
        "perToken": piece.per_token,
        "perPair": piece.per_pair,
        "perContextToken": piece.per_context_token,
        **_experts_to_json(piece),
    }
    return body | ({"fromContext": int(piece.from_context)} if piece.from_context > 0 else {})


def _experts_to_json(piece: PrefillPiece | DecodePiece) -> dict[str, object]:
    if piece.experts_seconds <= 0:  # only a mixture of experts has these two
        return {}
    return {"expertsSeconds": piece.experts_seconds, "expertShare": piece.expert_share}


def _decode_piece_to_json(piece: DecodePiece) -> dict[str, object]:
    body: dict[str, object] = {
        "alpha": piece.alpha,
        "perSequence": piece.per_sequence,
        "perContextToken": piece.per_context_token,
        "perChunkToken": piece.per_chunk_token,
        "perChunkPair": piece.per_chunk_pair,
        "perChunkContext": piece.per_chunk_context,
        **_experts_to_json(piece),
    }
    if piece.per_chunk > 0:
        body["perChunk"] = piece.per_chunk
    return body | ({"fromBatch": int(piece.from_batch)} if piece.from_batch > 0 else {})


def profile_from_json(body: Json) -> CostProfile:
    """Build a profile from its JSON form; mixed steps that it does not tell of are estimated from its prefill regimes.

    Raises:
        CostProfileError: a field is missing, of the wrong type, not finite or negative.
    """
    degrees: dict[Degree, DegreeCosts] = {}
    for i, row in enumerate(FIELDS.rows(body.get("degrees"), "degrees", some=True)):
        where = f"degrees[{i}]"
        degree = FIELDS.degree(row, "degree", where)
        if degree in degrees:
            raise CostProfileError(f"{where}.degree: degree {degree} appears twice; keep one")
        degrees[degree] = costs_from_json(row, where)
    transfers: dict[tuple[Degree, Degree, Link], TransferCost] = {}
    for i, row in enumerate(FIELDS.rows(body.get("transfers"), "transfers", some=True)):
        where = f"transfers[{i}]"
        link = row.get("link")
        if link not in LINKS:
            raise CostProfileError(f"{where}.link: {link!r} is not a link; use {' or '.join(LINKS)}")
        key = (FIELDS.degree(row, "source", where), FIELDS.degree(row, "destination", where), link)
        transfers[key] = TransferCost(
            alpha=FIELDS.required(row, "alpha", where),
            per_token=FIELDS.required(row, "perToken", where),
            fit=_fit(row, "fit", where),
        )
    provenance = body.get("provenance") or {}
    if not isinstance(provenance, Mapping):
        raise CostProfileError("provenance: must be an object of strings")
    return CostProfile(
        model=FIELDS.text(body, "model"),
        gpu=FIELDS.text(body, "gpu"),
        engine=FIELDS.text(body, "engine"),
        kv_bytes_per_token=FIELDS.whole(body, "kvBytesPerToken"),
        degrees=degrees,
        transfers=transfers,
        provenance={str(k): str(v) for k, v in provenance.items()},
    )


def costs_from_json(row: Json, where: str) -> DegreeCosts:
    prefill = tuple(
        _prefill_piece_from_json(p, f"{where}.prefill[{j}]")
        for j, p in enumerate(FIELDS.rows(row.get("prefill"), f"{where}.prefill", some=True))
    )
    if all(piece.from_context > 0 for piece in prefill):
        raise CostProfileError(f"{where}.prefill: every row has fromContext; one must apply to every prompt")
    rows = FIELDS.rows(row.get("decode"), f"{where}.decode", some=True)
    fits = row.get("fit") or {}
    if not isinstance(fits, Mapping):
        raise CostProfileError(f"{where}.fit: must be an object with prefill and step")
    decode = tuple(_decode_piece_from_json(p, f"{where}.decode[{j}]") for j, p in enumerate(rows))
    if all(piece.from_batch > 0 for piece in decode):
        raise CostProfileError(f"{where}.decode: every row has fromBatch; one must apply to every batch")
    mixed = [any(key in p for key in _CHUNK_FIELDS) for p in rows]
    if any(mixed) and not all(mixed):
        odd = f"{where}.decode[{mixed.index(False)}]"
        raise CostProfileError(f"{odd}: lacks {', '.join(_CHUNK_FIELDS)}; give them in every row of decode, or in none")
    return DegreeCosts(
        prefill=prefill,
        decode=decode if all(mixed) else with_chunk_costs(decode, prefill),
        weight_bytes_per_gpu=FIELDS.whole(row, "weightBytesPerGpu", where),
        kv_capacity_tokens=FIELDS.whole(row, "kvCapacityTokens", where),
        prefill_fit=_fit(fits, "prefill", f"{where}.fit"),
        step_fit=_fit(fits, "step", f"{where}.fit"),
    )


def _prefill_piece_from_json(row: Json, where: str) -> PrefillPiece:
    return PrefillPiece(
        alpha=FIELDS.required(row, "alpha", where),
        per_token=FIELDS.required(row, "perToken", where),
        per_pair=FIELDS.required(row, "perPair", where),
        per_context_token=FIELDS.required(row, "perContextToken", where),
        experts_seconds=FIELDS.required(row, "expertsSeconds", where) if "expertsSeconds" in row else 0.0,
        expert_share=FIELDS.share(row, "expertShare", where) if "expertsSeconds" in row else 0.0,
        from_context=float(FIELDS.whole(row, "fromContext", where)) if "fromContext" in row else 0.0,
    )


_CHUNK_FIELDS = ("perChunkToken", "perChunkPair", "perChunkContext")


def _decode_piece_from_json(row: Json, where: str) -> DecodePiece:
    mixed = any(key in row for key in _CHUNK_FIELDS)
    return DecodePiece(
        alpha=FIELDS.required(row, "alpha", where),
        per_sequence=FIELDS.required(row, "perSequence", where),
        per_context_token=FIELDS.required(row, "perContextToken", where),
        experts_seconds=FIELDS.required(row, "expertsSeconds", where) if "expertsSeconds" in row else 0.0,
        expert_share=FIELDS.share(row, "expertShare", where) if "expertsSeconds" in row else 0.0,
        per_chunk_token=FIELDS.required(row, "perChunkToken", where) if mixed else 0.0,
        per_chunk_pair=FIELDS.required(row, "perChunkPair", where) if mixed else 0.0,
        per_chunk_context=FIELDS.required(row, "perChunkContext", where) if mixed else 0.0,
        from_batch=float(FIELDS.whole(row, "fromBatch", where)) if "fromBatch" in row else 0.0,
        per_chunk=FIELDS.required(row, "perChunk", where) if "perChunk" in row else 0.0,
    )


def _fit(row: Json, key: str, where: str) -> FitError | None:
    fit = row.get(key)
    if fit is None:
        return None
    here = at(where, key)
    if not isinstance(fit, Mapping):
        raise CostProfileError(f"{here}: must be an object with median, p95 and points")
    return FitError(
        median=FIELDS.required(fit, "median", here),
        p95=FIELDS.required(fit, "p95", here),
        points=FIELDS.whole(fit, "points", here),
    )
