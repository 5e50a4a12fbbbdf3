"""``make e2e-roles``: workers change their roles under load, and nobody notices; prints what was measured.

First on loopback, where a file says the role; then real pods on a cluster, where the operator assigns it, and once more
while the operator is killed. Every part has all its checks: no failed request, no lost session, no restarted engine.
"""

import argparse
import secrets
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from weft_e2e.checks import CheckFailed
from weft_e2e.replay.client import SessionTranscript
from weft_e2e.replay.records import RoundRecord
from weft_e2e.scenarios import role_changes, role_switches
from weft_e2e.scenarios.installed import installed
from weft_e2e.scenarios.role_changes import RoleChange, times
from weft_e2e.service import Service
from weft_e2e.waiting import WaitedTooLong

PARTS = ("loopback", "cluster")
TITLES = ("where", "changes", "to decode", "to prefill", "failed requests", "lost sessions")


@dataclass(frozen=True, slots=True)
class Row:
    """What was seen in one part."""

    where: str
    changes: Sequence[RoleChange]
    records: Sequence[RoundRecord]
    transcripts: Sequence[SessionTranscript]

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        failed = sum(not record.ok for record in self.records)
        lost = sum(not all(record.ok for record in one.records) for one in self.transcripts)
        return (
            self.where,
            str(len(self.changes)),
            _seconds(times(self.changes, hands_over=False)),
            _seconds(times(self.changes, hands_over=True)),
            f"{failed} of {len(self.records):,}",
            f"{lost} of {len(self.transcripts):,}",
        )


def table(rows: Sequence[Row]) -> str:
    """Return the rows below their titles; times are the median and the longest of those that take a role at once
    ("to decode") and of those that hand their sessions over first ("to prefill")."""
    lines = [TITLES, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def main(argv: Sequence[str]) -> int:
    """Run everything; return 1 when a check failed."""
    parser = argparse.ArgumentParser(prog="weft_e2e.role_switches", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="where (default: both)")
    parser.add_argument("--changes", type=int, default=50, help="changes on loopback (default: 50)")
    parser.add_argument("--switches", type=int, default=15, help="changes on the cluster (default: 15)")
    parser.add_argument("--kills", type=int, default=5, help="further ones, with a kill of the operator (default: 5)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of kills (default: 1)")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    wrong: list[str] = []
    if "loopback" in options.parts:
        _attempt("loopback", lambda: rows.append(_on_loopback(options.changes)), wrong)
    if "cluster" in options.parts:
        with _service() as service:
            _attempt("cluster", lambda: rows.append(_on_cluster(service, options.switches)), wrong)
            if options.kills:
                _attempt(
                    "cluster, operator killed",
                    lambda: rows.append(_on_cluster(service, options.kills, kills=options.kills, seed=options.seed)),
                    wrong,
                )
    if rows:
        click.echo(table(rows))
    click.echo("\n".join(wrong) if wrong else "all checks passed")
    return 1 if wrong else 0


def _attempt(where: str, do: Callable[[], None], wrong: list[str]) -> None:
    click.echo(where)
    try:
        do()
    except (CheckFailed, WaitedTooLong) as error:
        wrong.append(f"{where}: {error}")


def _on_loopback(count: int) -> Row:
    with tempfile.TemporaryDirectory(prefix="weft-roles-") as folder:
        seen = role_changes.run(count, Path(folder), say=_say)
    return Row("loopback", seen.changes, seen.records, seen.transcripts)


def _on_cluster(service: Service, count: int, *, kills: int = 0, seed: int = 1) -> Row:
    seen = role_switches.run(service, count, kills=kills, seed=seed, say=_say)
    where = f"cluster, operator killed {kills} times" if kills else "cluster"
    return Row(where, seen.changes, seen.records, seen.transcripts)


@contextmanager
def _service() -> Iterator[Service]:
    """Yield a Ready service on a cluster with Weft, in a namespace of its own."""
    namespace = f"e2e-roles-{secrets.token_hex(2)}"
    with installed() as weft:
        weft.kube.kubectl("create", "namespace", namespace)
        try:
            yield role_switches.apply(weft.kube, namespace)
        finally:
            weft.kube.kubectl("delete", "namespace", namespace, "--wait=false")


def _say(words: str) -> None:
    click.echo(f"  {words}")


def _seconds(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.1f} s, at most {found[-1]:.1f} s" if found else "-"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
