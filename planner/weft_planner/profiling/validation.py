"""Refuse measured tables that would poison a fit: unit slips, times that shrink where they must grow, missing rows.

Rows are judged against one another by what every cost model has in common (``features.bounds``), so nothing is fitted
before the table is known to be sound; and, where model and GPU are known, against what the hardware could do at best.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product

import numpy as np

from weft_core.analytic import Efficiency, derive_profile
from weft_core.cost import CostProfile
from weft_core.gpus import Gpu
from weft_core.models import ModelDimensions
from weft_core.parallelism import Degree
from weft_planner.profiling.features import bounds, features
from weft_planner.profiling.measurements import GridCell, Measurement, MeasurementError, Measurements
from weft_planner.profiling.regression import Floats

NOISE = 0.3
"""How far a time may lie beyond what another row allows: kernels change with the shape, machines are noisy."""
_SLIP = 100.0
"""A repetition off by more than this is taken for a slip of units, which is off by 1,000 times the noise."""
_SUSPECT = 10.0
"""A row off by more than this, and in line with all others when scaled by 1,000, is taken for a slip of units."""
_GRID_SHARE = 0.6
"""Rows that fill this share of the grid they span are meant to be a grid."""
_MOST = 10
_MOST_NOTE = 1000
_SLOWEST = 100.0
"""Times of a file are off by no more from a careful estimate; milliseconds read as seconds are 1,000 times slower."""

SLOW = "slow"
"""The note on timings of a live engine that are far slower than usual."""


@dataclass(frozen=True, slots=True)
class Plausibility:
    """What hardware can do: ``floor`` at full rate without any overhead, ``usual`` with common efficiency."""

    floor: CostProfile
    usual: CostProfile


def plausibility(model: ModelDimensions, gpu: Gpu, degrees: Iterable[Degree]) -> Plausibility:
    """Return the limits of a model on a GPU.

    Raises:
        CostProfileError: the model does not fit these degrees.
    """
    perfect = Efficiency(
        compute=1.0, attention=1.0, memory=1.0, all_reduce_link=1.0, kv_link=1.0,
        prefill_overhead_s=0.0, decode_overhead_s=0.0, all_reduce_latency_s=0.0, kv_latency_s=0.0,
    )  # fmt: skip
    wanted = sorted(set(degrees))
    return Plausibility(
        derive_profile(model, gpu, degrees=wanted, efficiency=perfect), derive_profile(model, gpu, degrees=wanted)
    )


def check(
    measurements: Measurements,
    *,
    noise: float = NOISE,
    allow_missing: bool = False,
    limits: Plausibility | None = None,
    timed: bool = False,
) -> None:
    """Pass sound measurements.

    ``timed``: by Weft's own clock, not taken from a file. Their unit is sure, so none is too slow to be true: an engine
    may run on hardware far slower than the one that it is named after.

    Raises:
        MeasurementError: rows contradict each other or the hardware, or rows of the grid are missing.
    """
    problems: list[str] = []
    for _, rows in _by_model(measurements.rows):
        middles, strays = _middles(rows)
        problems += strays or [text for _, text in _contradictions(middles, noise)]
    if not problems and limits is not None:
        problems += _implausible(measurements.rows, limits, timed=timed)
    if not problems and not allow_missing:
        problems += _missing(measurements)
    if problems:
        raise MeasurementError(problems)


def contradicting_cells(measurements: Measurements, *, noise: float = NOISE) -> tuple[GridCell, ...]:
    """Return the cells that contradict most others, as ``check`` names them: another timing may mend them."""
    found: list[GridCell] = []
    for _, rows in _by_model(measurements.rows):
        middles, _ = _middles(rows)
        found += [row.cell for row, _ in _contradictions(middles, noise)]
    return tuple(found)


def _by_model(rows: Sequence[Measurement]) -> Iterable[tuple[object, list[Measurement]]]:
    """Yield the rows that one fitted function must explain together."""

    def key(row: Measurement) -> tuple[str, Degree, int, str, str]:
        cell = row.cell
        link = cell.link if cell.function == "transfer" else ""
        return cell.function, cell.degree, cell.destination, link, cell.way

    for name, group in groupby(sorted(rows, key=key), key=key):
        yield name, list(group)


def _middles(rows: Sequence[Measurement]) -> tuple[list[Measurement], list[str]]:
    """Return the middle row of each cell's repetitions, and those that are another unit's rather than the machine's."""
    by_cell: dict[GridCell, list[Measurement]] = {}
    for row in rows:
        by_cell.setdefault(row.cell, []).append(row)
    middles: list[Measurement] = []
    strays: list[str] = []
    for repeated in by_cell.values():
        repeated.sort(key=lambda row: row.seconds)
        middle = repeated[(len(repeated) - 1) // 2]
        middles.append(middle)
        for row in repeated:
            factor = max(row.seconds / middle.seconds, middle.seconds / row.seconds)
            if factor >= _SLIP:
                too_high = row.seconds > middle.seconds
                strays.append(_contradiction(row, middle, factor, too_high=too_high, slip=True))
    return middles, strays


def _contradictions(rows: list[Measurement], noise: float) -> list[tuple[Measurement, str]]:
    """Return and name the rows that contradict most others, worst first, until the rest agree."""
    table = features(rows[0].cell.function, [row.cell for row in rows])
    seconds = np.array([row.seconds for row in rows])
    excess = _excesses(table, seconds)
    limit = np.log1p(noise)
    problems: list[tuple[Measurement, str]] = []
    left = np.ones(len(rows), dtype=bool)
    while len(problems) < _MOST:
        above = np.where(left[:, None] & left[None, :], excess, 0.0)
        above[above <= limit] = 0.0
        # Row i may be too high for what j allows, or too low for what it allows i: both count against it.
        blame = (above > 0).sum(axis=1) + (above > 0).sum(axis=0) + 1e-3 * (above.sum(axis=1) + above.sum(axis=0))
        worst = int(blame.argmax())
        if blame[worst] == 0:
            break
        high, low = above[worst], above[:, worst]
        too_high = high.sum() >= low.sum()
        against = high if too_high else low
        partner = int(against.argmax())
        factor = float(np.exp(against.max()))
        mended = seconds.copy()
        mended[worst] *= 1e-3 if too_high else 1e3
        others = _excesses(table[left], mended[left])
        at = int(left[:worst].sum())
        slip = factor >= _SUSPECT and others[at].max() <= limit and others[:, at].max() <= limit
        text = _contradiction(rows[worst], rows[partner], factor, too_high=too_high, slip=slip)
        problems.append((rows[worst], text))
        left[worst] = False
    return problems


def _excesses(table: Floats, seconds: Floats) -> Floats:
    """Return, for each two rows, the logarithm of how far the first exceeds the most that the second allows it."""
    excess = np.zeros((len(seconds), len(seconds)))
    for at in range(len(seconds)):
        _, most = bounds(table[at], table, seconds)
        excess[at] = np.log(seconds[at]) - np.log(np.maximum(most, 1e-300))
    np.fill_diagonal(excess, 0.0)
    return np.maximum(excess, 0.0)


def _contradiction(row: Measurement, partner: Measurement, factor: float, *, too_high: bool, slip: bool) -> str:
    against = f"{partner.where} ({partner.cell}: {partner.seconds:.6g} s)"
    if slip:
        unit = (
            "it looks like milliseconds in a column of seconds; divide by 1000"
            if too_high
            else "it looks 1000 times too small; multiply by 1000, or measure again"
        )
        side = "above" if too_high else "below"
        return f"{row.where}, seconds: {row.seconds:.6g} is {factor:.0f} times {side} what {against} allows; {unit}"
    side = "longer" if too_high else "shorter"
    return (
        f"{row.where}, seconds: {row.seconds:.6g} for {row.cell} is {factor:.2g} times {side} than {against} allows; "
        "measure both again, remove one, or accept more by --noise"
    )


def without_hidden_transfers(measurements: Measurements, limits: Plausibility | None) -> Measurements:
    """Return timings of a live engine without transfers that its hardware could not do so fast.

    Such a timing is the difference of two requests, and noise in the second hides the first's transfer. Unlike a table
    whose unit is wrong, the others are good. A pair of engines of which one length is left tells no rate: it goes, too.
    """
    hidden: set[Measurement] = set()
    if limits is not None:
        for row in measurements.rows:
            least = predict_cell(limits.floor, row.cell) if row.cell.function == "transfer" else None
            if least is not None and row.seconds < least / 2:
                hidden.add(row)
    rows = tuple(row for row in measurements.rows if row not in hidden)
    lone = _lone_transfers(rows)
    rows = tuple(row for row in rows if row.cell not in lone)
    gone = {row.cell for row in measurements.rows} - {row.cell for row in rows}
    words = []
    if hidden:
        cells = "; ".join(map(str, sorted({row.cell for row in hidden})))
        words.append(f"{len(hidden)} timings that noise made faster than the hardware: {cells}")
    if lone:
        words.append("of one length alone, which tells no rate: " + "; ".join(map(str, sorted(lone))))
    if not words:
        return measurements
    notes = {**measurements.about.notes, "transfersLeftOut": "; ".join(words)[:_MOST_NOTE]}
    planned = tuple(cell for cell in measurements.planned if cell not in gone)
    return replace(measurements, about=replace(measurements.about, notes=notes), rows=rows, planned=planned)


def with_slowness(measurements: Measurements, limits: Plausibility | None) -> Measurements:
    """Return timings of a live engine with a note on those that are far slower than usual, where there are any."""
    factors = []
    if limits is not None:
        usual = ((row.seconds, predict_cell(limits.usual, row.cell)) for row in measurements.rows)
        factors = [seconds / least for seconds, least in usual if least is not None and seconds > least * _SLOWEST]
    if limits is None or not factors:
        return measurements
    text = (
        f"{len(factors)} of {len(measurements.rows)} timings are {min(factors):.0f} to {max(factors):.0f} times what "
        f"{limits.usual.gpu} usually takes; is it that GPU, and did nothing else use it?"
    )
    return replace(measurements, about=replace(measurements.about, notes={**measurements.about.notes, SLOW: text}))


def _lone_transfers(rows: Sequence[Measurement]) -> set[GridCell]:
    """Return the transfers of pairs that only one length was timed of: the others failed, or the time was up."""
    lengths: dict[tuple[Degree, int, str], set[int]] = {}
    cells = {row.cell for row in rows if row.cell.function == "transfer"}
    for cell in cells:
        lengths.setdefault((cell.degree, cell.destination, cell.link), set()).add(cell.tokens)
    return {cell for cell in cells if len(lengths[cell.degree, cell.destination, cell.link]) == 1}


def _implausible(rows: Sequence[Measurement], limits: Plausibility, *, timed: bool) -> list[str]:
    problems: list[str] = []
    for row in rows:
        least, usual = predict_cell(limits.floor, row.cell), predict_cell(limits.usual, row.cell)
        if least is None or usual is None:
            continue
        if row.seconds < least / 2:
            problems.append(
                f"{row.where}, seconds: {row.seconds:.6g} for {row.cell} is faster than {limits.floor.gpu} could be "
                f"({least:.3g} s); is the unit seconds, and the number of tokens right?"
            )
        elif not timed and row.seconds > usual * _SLOWEST:
            problems.append(
                f"{row.where}, seconds: {row.seconds:.6g} for {row.cell} is {row.seconds / usual:.0f} times what "
                f"{limits.floor.gpu} usually takes ({usual:.3g} s); milliseconds must be divided by 1000"
            )
    return problems


def predict_cell(profile: CostProfile, cell: GridCell) -> float | None:
    """Return what a profile says about a cell; None when it does not know the degree or the transfer."""
    if cell.function == "transfer":
        known = (cell.degree, cell.destination, cell.link) in profile.transfers
        if not known:
            return None
        return profile.t_kv(cell.tokens, source=cell.degree, destination=cell.destination, link=cell.link)
    if cell.degree not in profile.degrees:
        return None
    if cell.function == "prefill":
        return profile.t_pre(history=cell.history, increment=cell.increment, degree=cell.degree)
    return profile.t_step(
        batch=cell.batch, context=cell.context, chunk=cell.chunk, chunk_history=cell.history, degree=cell.degree
    )


def _missing(measurements: Measurements) -> list[str]:
    """Name the planned cells without a row, or the holes of what looks like a grid."""
    if measurements.planned:
        holes: Iterable[GridCell] = measurements.missing()
        fix = "go on with the run, or fit without it by --allow-missing"
    else:
        holes = _holes(measurements.rows)
        fix = "measure it, or fit without it by --allow-missing"
    return [f"rows: {cell} is missing from the grid; {fix}" for cell in holes]


_Fill = Callable[[int, int], GridCell]


def _holes(rows: Sequence[Measurement]) -> list[GridCell]:
    """Return the cells that are missing where the others form a grid of history x increment or batch x context."""
    holes: list[GridCell] = []
    degrees = sorted({row.cell.degree for row in rows})
    for degree in degrees:
        cells = {row.cell for row in rows if row.cell.degree == degree}
        prefills = {(c.history, c.increment) for c in cells if c.function == "prefill"}
        holes += _unfilled(prefills, lambda h, i, d=degree: GridCell("prefill", d, history=h, increment=i))  # type: ignore[misc]
        # A batch's context comes per sequence: a grid of it is one of batch x context / batch.
        steps = {(c.batch, c.context // c.batch) for c in cells if c.function == "step" and c.batch and not c.chunk}
        holes += _unfilled(steps, lambda b, each, d=degree: GridCell("step", d, batch=b, context=b * each))  # type: ignore[misc]
    return holes


def _unfilled(filled: set[tuple[int, int]], fill: _Fill) -> list[GridCell]:
    firsts, seconds = {a for a, _ in filled}, {b for _, b in filled}
    if len(filled) < _GRID_SHARE * len(firsts) * len(seconds):
        return []
    return [fill(a, b) for a, b in product(sorted(firsts), sorted(seconds)) if (a, b) not in filled]
