"""What one run of a contender showed, as it is kept in a file: the page is made from this alone."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bench.live.cells import CELLS
from bench.live.contenders import PROFILE_FREE


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the simulator said of a run, the mean of a few that differ by milliseconds: share, seconds, seconds."""

    met: float
    ttft_p95: float
    itl_mean: float
    local: float


@dataclass(frozen=True, slots=True)
class Row:
    """One run: sessions of a seed arriving at a rate (sessions/s), on engines that take ``slow`` times as long.

    Times are seconds of the GPU's clock (measured ones divided by ``slow``). ``met`` holds a 1 for each session within
    the SLO, else a 0; ``late`` and ``stalled`` count sessions with a late first token and with too slow answers;
    ``failed`` rounds without a whole answer. ``itl_*`` are of the sessions' mean gaps, ``gap_max`` is the median of
    their longest. ``reasons`` counts the router's decisions, ``tokens`` where prompts' KV came from by the engines'
    count. ``starved`` says why the machine may have spoilt the run; ``waited_s`` is how long a round's work waited for
    a core, in all processes.
    """

    cell: str
    contender: str
    step: int
    rate: float
    seed: int
    slow: float
    rounds: int
    failed: int
    met: tuple[int, ...]
    late: int
    stalled: int
    ttft_p50: float
    ttft_p95: float
    ttft_first_p95: float
    ttft_later_p95: float
    itl_p50: float
    itl_p95: float
    itl_mean: float
    gap_max: float
    local: float
    reasons: Mapping[str, int]
    tokens: Mapping[str, int]
    trusted: bool
    waited_s: float | None
    lag_s: float
    lost_s: float
    starved: tuple[str, ...]
    wall_s: float
    predicted: Predicted | None
    errors: Mapping[str, tuple[int, float, float]] = field(default_factory=dict)
    """Observed over predicted TTFT of the router's decisions, by route: their number, median and P90."""

    @property
    def share(self) -> float:
        """Return the share of sessions within the SLO."""
        return sum(self.met) / len(self.met)


@dataclass
class Record:
    """All that one run of the bench found.

    ``defaults`` is the policy of Weft's default by cell; ``predicted`` the simulator's goodput (sessions/s) by cell and
    contender; ``broken`` says why a contender could not be measured.
    """

    how: str = ""
    machine: str = ""
    seeds: tuple[int, ...] = ()
    share: float = 1.0
    """Of each cell's sessions that a run has."""
    defaults: dict[str, str] = field(default_factory=dict)
    predicted: dict[str, dict[str, float]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    complete: bool = True
    further: tuple[int, ...] = ()
    """Seeds of the default and the best other alone, where they are close; their runs have more sessions."""

    def rows_of(self, cell: str, contender: str) -> list[Row]:
        """Return the runs that count for a contender in a cell: without a profile, also those in the cell's base.

        Of runs with fewer and with more sessions only the latter count: queues take a while to build up. Those of
        further seeds are not compared with the others.
        """
        cells = {cell, CELLS[cell].base} if contender in PROFILE_FREE else {cell}
        found = [row for row in self.rows if row.contender == contender and row.cell in cells]
        most = {
            kind: max((len(row.met) for row in found if (row.seed in self.further) is kind), default=0)
            for kind in (False, True)
        }
        return [row for row in found if len(row.met) == most[row.seed in self.further]]

    def shares(self, cell: str, contender: str) -> dict[int, dict[int, float]]:
        """Return the attainment of a contender in a cell by step and seed; the last run of a seed counts."""
        found: dict[int, dict[int, float]] = {}
        for row in self.rows_of(cell, contender):
            found.setdefault(row.step, {})[row.seed] = row.share
        return found

    def spoilt(self, cell: str, contender: str) -> bool:
        """Tell whether a run that counts for a contender in a cell is one that the machine may have spoilt."""
        latest = {(row.step, row.seed): row for row in self.rows_of(cell, contender)}
        return any(row.starved for row in latest.values())

    @property
    def cells(self) -> list[str]:
        """Return the cells in the order of their first runs."""
        return list(dict.fromkeys(row.cell for row in self.rows))

    def contenders(self, cell: str) -> list[str]:
        """Return the contenders of a cell in the order in which they came."""
        base = CELLS[cell].base
        return list(
            dict.fromkeys(
                row.contender
                for row in self.rows
                if row.cell == cell or (row.cell == base and row.contender in PROFILE_FREE)
            )
        )


def save(record: Record, path: Path) -> None:
    """Write the record as JSON, a row on each line."""
    body = asdict(record)
    rows = body.pop("rows")
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    head = json.dumps(body, indent=1).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head},\n "rows": [\n{lines}\n]}}\n', encoding="utf-8")


def read(path: Path) -> Record:
    """Read what ``save`` wrote.

    Raises:
        ValueError: a field is unknown or missing.
    """
    body = json.loads(path.read_text(encoding="utf-8"))
    unknown = body.keys() - {one.name for one in fields(Record)}
    if unknown:
        raise ValueError(f"{path}: unknown fields: {', '.join(sorted(unknown))}")
    return Record(
        **{
            **body,
            "seeds": tuple(body["seeds"]),
            "further": tuple(body.get("further", ())),
            "rows": [_row(row) for row in body["rows"]],
        }
    )


def _row(body: dict[str, Any]) -> Row:
    predicted = body.pop("predicted")
    try:
        prediction = Predicted(**predicted) if isinstance(predicted, dict) else None
        errors = {route: tuple(values) for route, values in body.pop("errors", {}).items()}
        lists = {"met": tuple(body["met"]), "starved": tuple(body["starved"])}
        return Row(**{**body, **lists}, errors=errors, predicted=prediction)
    except (KeyError, TypeError) as error:
        raise ValueError(f"a row cannot be read: {error}") from error
