"""The ring of decisions: bounded, cheap, and a whole answer to why a request went where it went."""

import contextlib
import math
import tracemalloc
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.inputs import TaskFigures
from weft_core.policies.snapshot import Decision, PrefillTask, RoutingOption
from weft_router.errors import InvalidRequestError
from weft_router.telemetry import decision_log
from weft_router.telemetry.decision_log import DecisionLog, DecisionRecord

TASK = PrefillTask(900, 100)


class Evidence:
    """What a decision was made from."""

    def __init__(self, *options: RoutingOption, weight: int = 0) -> None:
        self._options = options
        self.read = 0
        self._weight = [float(k) for k in range(weight)]

    def figures(self) -> TaskFigures:
        return TaskFigures(*[math.nan] * 12)

    def alternatives(self) -> tuple[RoutingOption, ...]:
        self.read += 1
        return self._options

    def costs(self) -> Mapping[str, float]:
        return {}

    def hedge(self, choice: str | None, risk: float, *, only_local: bool) -> str | None:
        del choice, risk, only_local
        return None

    def best_ttft(self) -> float:
        return math.inf

    def itl_s(self) -> float:
        return math.nan

    def answers(self) -> tuple[float, int]:
        return math.nan, 0


def add(ring: DecisionLog, k: int = 0, *, decision: Decision | None = None, **fields: str) -> DecisionRecord:
    words = {"session": f"s{k}", "class_": "default", "policy": "weft", "worker": "d0", "trace": f"{k:032x}", **fields}
    return ring.add(float(k), task=TASK, decision=decision or Decision(None, "fits"), **words)


def read(ring: DecisionLog, query: bytes = b"") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(ring.answer(query))["decisions"]
    return found


def test_a_record_says_what_was_chosen_among_what_and_how_it_went() -> None:
    ring = DecisionLog()
    evidence = Evidence(
        RoutingOption("local", 0.9, 0.25, 1.5),
        RoutingOption("p0", 0.2, 0.0, 0.1),
        RoutingOption("p1", math.nan, 0.0, math.nan),
    )
    record = add(ring, 7, decision=Decision("p0", "interference", ttft_s=0.2, evidence=evidence), class_="gold")
    assert evidence.read == 0  # nothing is worked out before somebody asks
    record.ttft = 0.2471234567
    record.outcome = "prefill-failed"
    (shown,) = read(ring)
    assert shown.pop("time").startswith("20")
    assert shown == {
        "trace": f"{7:032x}", "session": "s7", "class": "gold", "policy": "weft", "worker": "d0",
        "history": 900, "increment": 100, "chosen": "p0", "reason": "interference",
        "predicted_ttft": 0.2, "observed_ttft": 0.247123, "outcome": "prefill-failed",
        "alternatives": [
            {"option": "local", "ttft": 0.9, "itl_cost": 0.25, "cost": 1.5},
            {"option": "p0", "ttft": 0.2, "itl_cost": 0.0, "cost": 0.1},
            {"option": "p1", "ttft": None, "itl_cost": 0.0, "cost": None},
        ],
    }  # fmt: skip


@pytest.mark.parametrize(("chunked", "chosen"), [(True, "local-chunked"), (False, "local")])
def test_a_local_prefill_says_whether_in_slices(chunked: bool, chosen: str) -> None:
    ring = DecisionLog()
    add(ring, decision=Decision(None, "fits", chunked=chunked))
    (shown,) = read(ring)
    assert (shown["chosen"], shown["predicted_ttft"], shown["alternatives"]) == (chosen, None, [])


@given(st.integers(1, 20), st.integers(0, 50), st.integers(1, 20))
def test_the_latest_are_kept_and_shown_first(limit: int, made: int, n: int) -> None:
    ring = DecisionLog(limit)
    for k in range(made):
        add(ring, k)
    n = min(n, limit)
    assert [int(one["session"][1:]) for one in read(ring, b"n=%d" % n)] == list(range(made))[::-1][: min(n, limit)]
    assert orjson.loads(ring.answer())["total"] == made
    assert orjson.loads(ring.answer())["kept"] == min(made, limit)


def test_they_can_be_asked_for_by_reason_session_class_and_trace() -> None:
    ring = DecisionLog()
    for k in range(10):
        add(ring, k, decision=Decision(None, "fits" if k % 2 else "urgent"), class_="gold" if k < 3 else "default")
    assert [one["session"] for one in read(ring, b"reason=urgent&n=2")] == ["s8", "s6"]
    assert [one["session"] for one in read(ring, b"class=gold&reason=fits")] == ["s1"]
    assert [one["session"] for one in read(ring, b"session=s4")] == ["s4"]
    assert [one["session"] for one in read(ring, b"trace=%032x" % 5)] == ["s5"]
    assert read(ring, b"session=%27nobody") == []


@pytest.mark.parametrize(
    ("query", "named"),
    [(b"n=0", "n"), (b"n=1025", "n"), (b"n=-1", "n"), (b"n=x", "n"), ("n=٣".encode(), "n"), (b"n=1&n=2", "n"),
     (b"limit=3", "limit"), (b"evidence=x", "evidence"), (b"n=" + b"9" * 9999, "n"), (b"&".join([b"n=1"] * 99), None)],
)  # fmt: skip
def test_a_wrong_question_is_refused_with_its_field(query: bytes, named: str | None) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        DecisionLog().answer(query)
    assert refused.value.param == named


@given(st.binary(max_size=80))
def test_no_question_breaks_it(query: bytes) -> None:
    ring = DecisionLog()
    add(ring)
    with contextlib.suppress(InvalidRequestError):
        assert orjson.loads(ring.answer(query))["kept"] == 1


def test_what_decisions_were_made_from_is_kept_of_the_latest_only() -> None:
    ring = DecisionLog()
    option = RoutingOption("local", 0.1, 0.0, 0.0)
    tracemalloc.start()
    for k in range(1000):
        add(ring, k, decision=Decision(None, "fits", evidence=Evidence(option, weight=500)))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 6 * 2**20  # all thousand would hold 16 MiB
    explained = [bool(one["alternatives"]) for one in read(ring, b"n=1000")]
    assert explained == [True] * decision_log.EXPLAINED + [False] * (1000 - decision_log.EXPLAINED)
