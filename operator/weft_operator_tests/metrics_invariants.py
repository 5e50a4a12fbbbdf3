"""What must hold for any answer of a Prometheus: it is read, or the service is not seen; nothing else ever happens.

The tests and the fuzz target (operator/fuzz) share these.
"""

import copy
import json
import math
from datetime import UTC, datetime
from functools import cache
from typing import Any, cast

from weft_core_tests.picker import Picker
from weft_operator.metrics.observation import Observation
from weft_operator.metrics.queries import windows_of
from weft_operator.metrics.query_results import QueryResults, read
from weft_operator.metrics.status_figures import differs, figures, slo_reason
from weft_operator_tests.fake_prometheus import Prometheus, Router

NOW = 1_800_000_000.0
AT = datetime.fromtimestamp(NOW, UTC)

VALUES: tuple[object, ...] = (
    *("0", "1", "-1", "0.5", "1e15", "1e16", "1.7e308", "-1.7e308", "5e-324", "NaN", "+Inf", "-Inf", "", "x"),
    *("9" * 400, "9" * 5000, int("9" * 400), 0, 1, None, True, [], {}, ["1"], str(NOW), str(NOW + 1e6)),
)
LABELS: tuple[object, ...] = (
    *("d0", "d1", "", "first", "later", "good", "bad", "round", "ttft", "itl", "default", "x" * 1000, "\ud800"),
    *("1", "100", "0", "-1", "NaN", "+Inf", "1e-320", "1.7e308", "1.0000000000000002", "pod_rounds", "pod_ttft"),
    *("queue", "kv", "copies", "last", None, 7, {}, []),
)
NAMES = ("figure", "pod", "le", "phase", "class", "outcome", "objective", "component", "other")
WINDOWS = (20.0, 300.0, 21600.0)


@cache
def _scraped(window_s: float, young: bool) -> Prometheus:
    routers = [Router("d0", NOW - 50_000, 2.0), Router("d1", NOW - (70 if young else 50_000), 17.0)]
    return Prometheus(routers, NOW, windows_of(window_s))


def answers_are_read_or_refused(data: bytes) -> None:
    """Check one input: results as JSON, or a good answer of which some series were changed."""
    picker = Picker(data)
    kind, prometheus = picker.number(1), _scraped(picker.choice(WINDOWS), bool(picker.number(1)))
    answers = _changed(prometheus, picker) if kind else _plain(picker.rest())
    if answers is None:
        return
    found = read(answers, prometheus.subject(stale_after_s=min(60.0, prometheus.windows.whole / 2)), at=AT)
    observation_is_sound(found)


def observation_is_sound(found: Observation) -> None:
    """Check that what was read can be shown, and is of numbers that can be reckoned with."""
    shown = json.dumps(figures(found), allow_nan=False)
    if not found.availability.seen:
        assert (found.workload, found.slo, found.pods) == (None, None, {}), shown
        return
    assert not differs(found, found)
    assert slo_reason(found.slo)
    load = found.workload
    assert load is not None
    for rate in (load.session_rate, load.round_rate, load.refused_rate):
        assert rate >= 0
        assert math.isfinite(rate)
    for spread in (load.rounds, load.first_prompt, load.increment, load.decode, load.gap_s):
        if spread is not None:
            assert all(map(math.isfinite, (spread.mean, spread.sd, spread.p50, spread.p95, *spread.edges)))
            assert len(spread.edges) == len(spread.weights) + 1


def _plain(raw: bytes) -> QueryResults | None:
    try:
        result = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return QueryResults([NOW, str(NOW)], result if isinstance(result, list) else [result])


def _changed(prometheus: Prometheus, picker: Picker) -> QueryResults:
    answers = prometheus.answers()
    rows = copy.deepcopy(cast(list[dict[str, Any]], answers.results[0]))
    for _ in range(1 + picker.number(4)):
        if not rows:
            break
        at = picker.number(len(rows) - 1)
        match picker.number(4):
            case 0:
                rows[at]["value"] = [0, picker.choice(VALUES)]
            case 1:
                rows[at]["value"] = [0, str(picker.real())]
            case 2:
                rows[at]["metric"][picker.choice(NAMES)] = picker.choice(LABELS)
            case 3:
                figure = rows[at]["metric"].get("figure")
                rows = [row for row in rows if row["metric"].get("figure") != figure]
            case _:
                rows.append(copy.deepcopy(rows[at]))
    return QueryResults(answers.clock, [rows])
