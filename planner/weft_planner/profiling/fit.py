"""Fit a cost profile to measurements: T_pre and engine steps per degree, KV transfers per pair of degrees.

What measurements do not tell is filled from a *fallback* (usually the analytic profile of the same model and GPU) and
said in the provenance: memory sizes, transfers of pairs that were not measured, and chunk costs where no mixed step
was. Errors are those of rows that were held out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from weft_core.cost import (
    LINKS,
    CostProfile,
    DecodePiece,
    DegreeCosts,
    FitError,
    Link,
    PrefillPiece,
    TransferCost,
    with_chunk_costs,
)
from weft_core.memory import share_of_ranks
from weft_core.parallelism import Degree, links_between, parallelism_of
from weft_planner.profiling.features import prefill_features, step_features, transfer_features
from weft_planner.profiling.measurements import (
    WAYS,
    Function,
    GridCell,
    MeasurementContext,
    MeasurementError,
    Measurements,
    Memory,
    Way,
)
from weft_planner.profiling.regression import Floats, HeldOut, MaxAffine, fit_max_affine, nnls, score

EXPERT_SHARES = (1.0, 0.5, 0.25)
"""What is tried of the share of experts that one token chooses: tokens of one prompt often choose the same ones."""
_USUAL_CHUNK = 2048
_CHUNK_COSTS = ("per_chunk_token", "per_chunk_pair", "per_chunk_context", "per_chunk")
_FEWEST = {"prefill": 4, "step": 4, "transfer": 2}


@dataclass(frozen=True, slots=True)
class FitPriors:
    """What measurements cannot tell: the share of experts one token touches (0: dense), and a profile to fall back on.

    ``link_rate`` is bytes per second of one GPU's link, for transfers that neither measurements nor fallback have.
    """

    expert_share: float = 0.0
    fallback: CostProfile | None = None
    link_rate: float = 0.0


@dataclass(frozen=True)
class CellMedians:
    """The medians of all rows of the same cell, in the order of the cells."""

    cells: tuple[GridCell, ...]
    seconds: Floats


def samples(measurements: Measurements, function: Function) -> CellMedians:
    """Return one function's rows, each cell's repetitions brought to their median."""
    by_cell: dict[GridCell, list[float]] = {}
    for row in measurements.rows:
        if row.cell.function == function:
            by_cell.setdefault(row.cell, []).append(row.seconds)
    cells = tuple(sorted(by_cell))
    return CellMedians(cells, np.array([float(np.median(by_cell[cell])) for cell in cells]))


def fit_profile(measurements: Measurements, unmeasured: FitPriors = FitPriors()) -> CostProfile:
    """Fit a profile to checked measurements.

    Raises:
        MeasurementError: there are too few rows for a function, or something is neither measured nor given.
    """
    about = measurements.about
    prefill, step = samples(measurements, "prefill"), samples(measurements, "step")
    notes: dict[str, str] = {}
    problems = [
        f"{name}: not known; give it with the measurements, or by --{name}"
        for name, value in (("model", about.model), ("gpu", about.gpu), ("engine", about.engine))
        if not value
    ]
    degrees: dict[Degree, DegreeCosts] = {}
    for degree in sorted({cell.degree for cell in (*prefill.cells, *step.cells)}):
        try:
            degrees[degree] = _degree(degree, _of(prefill, degree), _of(step, degree), about, unmeasured, notes)
        except MeasurementError as error:
            problems += error.problems
    kv_bytes = about.kv_bytes_per_token or (unmeasured.fallback.kv_bytes_per_token if unmeasured.fallback else 0)
    if not kv_bytes:
        problems.append("kvBytesPerToken: not known; name a known model, or give its config.json by --config")
    if not degrees and not problems:
        problems.append("rows: neither prefills nor steps were measured; measure both")
    if problems:
        raise MeasurementError(problems)
    transfers = _transfers(samples(measurements, "transfer"), sorted(degrees), kv_bytes, unmeasured, notes)
    return CostProfile(
        model=about.model,
        gpu=about.gpu,
        engine=about.engine,
        kv_bytes_per_token=kv_bytes,
        degrees=degrees,
        transfers=transfers,
        provenance={"source": "measured", "units": "seconds, tokens, bytes", **about.notes, **notes},
    )


def _of(rows: CellMedians, degree: Degree) -> CellMedians:
    keep = [index for index, cell in enumerate(rows.cells) if cell.degree == degree]
    return CellMedians(tuple(rows.cells[index] for index in keep), rows.seconds[keep])


def _degree(
    degree: Degree,
    prefill: CellMedians,
    step: CellMedians,
    about: MeasurementContext,
    unmeasured: FitPriors,
    notes: dict[str, str],
) -> DegreeCosts:
    problems = _too_few(f"degree {degree}", prefill, "prefill", ("increment",))
    problems += _too_few(f"degree {degree}", step, "step", ("batch", "context"))
    memory = about.memory.get(degree) or _fallback_memory(degree, unmeasured.fallback)
    if memory is None or not memory.weight_bytes_per_gpu or not memory.kv_capacity_tokens:
        problems.append(
            f"memory: weight bytes per GPU and KV capacity of degree {degree} are not known; "
            "name a known model and GPU, or give both"
        )
    if problems or memory is None:
        raise MeasurementError(problems)
    share = share_of_ranks(unmeasured.expert_share, parallelism_of(degree).dp)
    pieces, prefill_error = fit_prefill(prefill, share, notes)
    regimes, step_error = fit_steps(step, pieces, share, notes)
    return DegreeCosts(
        prefill=pieces,
        decode=regimes,
        weight_bytes_per_gpu=memory.weight_bytes_per_gpu,
        kv_capacity_tokens=memory.kv_capacity_tokens,
        prefill_fit=prefill_error,
        step_fit=step_error,
    )


def _too_few(whose: str, rows: CellMedians, function: Function, vary: Sequence[str]) -> list[str]:
    if len(rows.cells) < _FEWEST[function]:
        return [f"{whose}: {len(rows.cells)} shapes of {function}; measure {_FEWEST[function]} or more"]
    return [
        f"{whose}: every {function} has the same {name}, so its cost cannot be told; measure at least two"
        for name in vary
        if len({getattr(cell, name) for cell in rows.cells}) < 2
    ]


def _fallback_memory(degree: Degree, fallback: CostProfile | None) -> Memory | None:
    if fallback is None or degree not in fallback.degrees:
        return None
    costs = fallback.degrees[degree]
    return Memory(costs.weight_bytes_per_gpu, costs.kv_capacity_tokens)


def fit_prefill(
    rows: CellMedians, expert_share: float, notes: dict[str, str]
) -> tuple[tuple[PrefillPiece, ...], FitError]:
    """Return T_pre's regimes and how well they predict."""
    history = any(cell.history for cell in rows.cells)
    if not history:
        notes["history"] = "no prefill after a history was measured; its cost follows from the attended pairs"

    def fitted(share: float) -> tuple[MaxAffine, HeldOut]:
        table = prefill_features(rows.cells, expert_share=share)
        if history:
            return fit_max_affine(table, rows.seconds)
        # Without a history increment and context are one: the quadratic part alone says what a history costs.
        table[:, 3] = 0.0
        model, held_out = fit_max_affine(table, rows.seconds)
        return _without_stray_pairs(model, table, rows.seconds), held_out

    share, model, held_out = _best_share(expert_share, fitted)
    # By their fixed cost, so that the same measurements give the same file.
    regimes = [[_figure(value) for value in regime] for regime in sorted(model.coefficients.tolist())]
    pieces = [
        PrefillPiece(alpha, token, pair, context, experts, share if experts > 0 else 0.0)
        for alpha, token, pair, context, experts in regimes
    ]
    return tuple(pieces), _error(held_out)


def _best_share(
    expert_share: float, fitted: Callable[[float], tuple[MaxAffine, HeldOut]]
) -> tuple[float, MaxAffine, HeldOut]:
    """Return the share of experts a token reads that predicts best: tokens that choose alike read fewer of them."""
    shares = [expert_share * part for part in EXPERT_SHARES] if expert_share else [0.0]
    tried = [(share, *fitted(share)) for share in shares]
    return min(tried, key=lambda found: score(found[2]))


def _without_stray_pairs(model: MaxAffine, table: Floats, seconds: Floats) -> MaxAffine:
    """Leave attended pairs to the regime of the longest prefills, the only one whose rows can tell what pairs cost.

    Among short prefills a little curvature fits as well as a straight line, and would grow without bounds with a
    history.
    """
    of = (table @ model.coefficients.T).argmax(axis=1)
    longest = of[int(table[:, 1].argmax())]
    coefficients = model.coefficients.copy()
    for regime in range(len(coefficients)):
        own = of == regime
        if regime != longest and own.any():
            straight = table[own] * np.array([1.0, 1.0, 0.0, 0.0, 1.0])
            coefficients[regime] = nnls(straight / seconds[own, None], np.ones(int(own.sum())))
    return MaxAffine(coefficients)


def fit_steps(
    rows: CellMedians, prefill: Sequence[PrefillPiece], expert_share: float, notes: dict[str, str]
) -> tuple[tuple[DecodePiece, ...], FitError]:
    """Return the regimes of an engine step and how well they predict; chunk costs from prefill if none was measured."""
    mixed = any(cell.chunk for cell in rows.cells)
    history = any(cell.history for cell in rows.cells)
    batches = np.array([float(cell.batch) for cell in rows.cells])

    def fitted(share: float) -> tuple[MaxAffine, HeldOut]:
        table = step_features(rows.cells, expert_share=share)
        if not history:
            table[:, 6] = 0.0
        return fit_max_affine(table, rows.seconds, sizes=batches)

    share, model, held_out = _best_share(expert_share, fitted)
    since = np.zeros(len(model.coefficients)) if model.since is None else model.since
    pieces = []
    for (alpha, batch, context, experts, token, pair, held, chunk), from_batch in sorted(
        zip(model.coefficients.tolist(), since.tolist(), strict=True)
    ):
        piece = DecodePiece(
            alpha=_figure(alpha),
            per_sequence=_figure(batch),
            per_context_token=_figure(context),
            experts_seconds=_figure(experts),
            expert_share=share if experts > 0 else 0.0,
            per_chunk_token=_figure(token),
            per_chunk_pair=_figure(pair),
            per_chunk_context=_figure(held),
            from_batch=from_batch,
            per_chunk=_figure(chunk),
        )
        pieces.append(piece)
    if not mixed:
        notes["mixedSteps"] = "not measured; estimated from above by decode step plus the chunk's prefill"
        return with_chunk_costs(pieces, prefill), _error(held_out)
    return with_chunks_at_any_batch(pieces), _error(held_out)


def with_chunks_at_any_batch(pieces: Sequence[DecodePiece]) -> tuple[DecodePiece, ...]:
    """Return regimes of which those of the smallest batches know what a chunk costs.

    Mixed steps are measured at a few batch sizes. Where all of these are in regimes that apply from one size on, the
    others would take chunks for nothing: they take them for what the dearest of the regimes does.
    """
    smallest = [piece for piece in pieces if piece.from_batch == 0]
    if any(piece.per_chunk_token or piece.per_chunk_pair for piece in smallest):
        return tuple(pieces)
    dearest = max(pieces, key=lambda piece: piece.per_chunk + piece.per_chunk_token * _USUAL_CHUNK)
    costs = {name: getattr(dearest, name) for name in _CHUNK_COSTS}
    return tuple(replace(piece, **costs) if piece.from_batch == 0 else piece for piece in pieces)


def _error(held_out: HeldOut) -> FitError:
    return FitError(
        median=float(f"{held_out.median:.4g}"), p95=float(f"{held_out.p95:.4g}"), points=len(held_out.errors)
    )


def _figure(value: float) -> float:
    return float(f"{value:.6g}")


_Pair = tuple[Degree, Degree, Link]


def _transfers(
    rows: CellMedians, degrees: Sequence[Degree], kv_bytes: int, unmeasured: FitPriors, notes: dict[str, str]
) -> Mapping[_Pair, TransferCost]:
    measured = _measured_transfers(rows, notes)
    fallback = unmeasured.fallback.transfers if unmeasured.fallback else {}
    transfers: dict[_Pair, TransferCost] = dict(measured)
    filled: list[str] = []
    for source, destination, link in product(degrees, degrees, LINKS):
        pair = (source, destination, link)
        if pair in transfers:
            continue
        if pair in fallback:
            transfers[pair] = fallback[pair]
        elif unmeasured.link_rate > 0:
            rate = unmeasured.link_rate * links_between(source, destination)
            transfers[pair] = TransferCost(alpha=0.005, per_token=_figure(kv_bytes / rate))
        elif measured:
            transfers[pair] = max(measured.values(), key=lambda cost: cost.seconds(1000))
        else:
            raise MeasurementError(
                ["transfers: none was measured; name a known model and GPU, or give the rate of the link"]
            )
        filled.append(f"{source}->{destination} {link}")
    if filled:
        notes["transfers"] = ("estimated, not measured: " + ", ".join(filled))[:1000]
    return transfers


def _measured_transfers(rows: CellMedians, notes: dict[str, str]) -> dict[_Pair, TransferCost]:
    """Return a cost for each pair of degrees; both ways between equal degrees are one pair, and fitted as one."""
    by_pair: dict[_Pair, list[int]] = {}
    for index, cell in enumerate(rows.cells):
        by_pair.setdefault((cell.degree, cell.destination, cell.link), []).append(index)
    transfers: dict[_Pair, TransferCost] = {}
    ways: list[str] = []
    for pair, at in by_pair.items():
        some = CellMedians(tuple(rows.cells[index] for index in at), rows.seconds[at])
        problems = _too_few(f"transfers {pair[0]}->{pair[1]} {pair[2]}", some, "transfer", ("tokens",))
        if problems:
            raise MeasurementError(problems)
        transfers[pair] = _transfer(some)
        parts = {way: _of_way(some, way) for way in WAYS}
        if len({cell.tokens for cell in parts["back"].cells}) < 2:
            continue
        fits = [f"{way} {_words(_transfer(part))}" for way, part in parts.items() if len(part.cells) > 1]
        ways.append(f"{pair[0]}->{pair[1]} {pair[2]}: {', '.join(fits)}")
    if ways:
        notes["transferWays"] = (
            "both ways between equal degrees are fitted as one; each by itself: " + "; ".join(ways)
        )[:1000]
    return transfers


def _transfer(some: CellMedians) -> TransferCost:
    model, held_out = fit_max_affine(transfer_features(some.cells), some.seconds, most_regimes=1)
    alpha, per_token = model.coefficients[0].tolist()
    return TransferCost(_figure(alpha), _figure(per_token), _error(held_out))


def _of_way(some: CellMedians, way: Way) -> CellMedians:
    keep = [index for index, cell in enumerate(some.cells) if cell.way == way]
    return CellMedians(tuple(some.cells[index] for index in keep), some.seconds[keep])


def _words(cost: TransferCost) -> str:
    return f"{1e3 * cost.alpha:.3g} ms + {1e6 * cost.per_token:.3g} us a token"
