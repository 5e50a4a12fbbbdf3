"""What the report says of the service's routing beside the baseline: both, whichever is better."""

import dataclasses
from html import unescape
from typing import Any

import pytest
import yaml

from weft_core.plan import Alternative, Plan, PlannedGroup, PlannedPolicy
from weft_core.prediction import Estimate
from weft_e2e.demo import comparison, page, table
from weft_e2e.demo.baseline import CLASS, POLICY, best_without_local, notes, why_no_baseline, with_baseline
from weft_e2e.demo.engines import EnginePace
from weft_e2e.demo.facts import Baseline, Facts, hidden_reading, shown_readings
from weft_e2e.demo.measures import summarise
from weft_e2e.demo.settings import EXAMPLE, repository_root
from weft_e2e.metrics import KvFlow
from weft_e2e.replay.records import RoundRecord
from weft_e2e_tests.demo_samples import LOAD, PLAN, SLO, facts, many_rounds
from weft_operator.api.objects import ServiceKey
from weft_operator.api.service import DisaggInferenceService
from weft_operator.planning.request import planner_request
from weft_operator.render.inputs import PlanRecord, Rendering
from weft_operator.render.router_config import live_json
from weft_operator_tests.samples import SETTINGS

WEFT = PlannedPolicy("weft", "ia", "moore-hodgson")
REMOTE = PlannedPolicy("weft", "remote-jsq", "moore-hodgson")
PLANNED = dataclasses.replace(
    PLAN, policy=WEFT, predicted=dataclasses.replace(PLAN.predicted, goodput=Estimate(0.51, 0.44, 0.57))
)


def compared(ttft: float = 2.0, gap: float = 1.0) -> Facts:
    """Return facts whose baseline has so many times the service's latencies."""
    records = many_rounds()
    other = tuple(slower(record, ttft, gap) for record in records)
    baseline = Baseline(
        policy=POLICY,
        summary=summarise(other, SLO),
        records=other,
        kv=KvFlow(50e9, 30e9, 143_200, 51_000, 0),
        load=LOAD,
        pace=EnginePace(lost_s=0.0, worst_step_s=0.004),
    )
    return dataclasses.replace(facts(records), baseline=baseline, plan=PLANNED)


def slower(record: RoundRecord, ttft: float, gap: float) -> RoundRecord:
    assert record.ttft_s is not None
    gaps = tuple(gap * value for value in record.gaps_s)
    return dataclasses.replace(record, ttft_s=ttft * record.ttft_s, gaps_s=gaps, route="remote")


def better(made: Facts) -> dict[str, str]:
    return {row.name: row.better for row in comparison.rows(made)}


def test_each_measure_says_which_routing_was_better() -> None:
    assert better(compared(ttft=2.0, gap=0.8)) == {
        "Sessions within the SLO": "service",
        "First token of later rounds, median": "service",
        "First token of later rounds, P95": "service",
        "First token of first rounds, P95": "service",
        "Gap between tokens, P95 of rounds": "baseline",
        "Prefills run locally": "",
        "KV moved between workers": "service",
    }
    worse = better(compared(ttft=0.5, gap=1.0))
    assert worse["First token of later rounds, P95"] == "baseline"
    assert worse["Gap between tokens, P95 of rounds"] == ""


def test_chance_is_not_called_better() -> None:
    made = compared(ttft=1.02)
    assert better(made)["First token of later rounds, median"] == ""
    mine = made.summary.default_attained
    assert made.baseline is not None
    near = dataclasses.replace(mine, met=mine.met - comparison.CHANCE)
    summary = dataclasses.replace(made.summary, attained=(near, *made.summary.attained[1:]))
    made = dataclasses.replace(made, baseline=dataclasses.replace(made.baseline, summary=summary))
    assert better(made)["Sessions within the SLO"] == ""


def test_table_and_page_begin_with_the_comparison() -> None:
    made = compared(gap=0.8)
    text, html = table.render(made), page.render(made)
    assert text.index("always remote") < text.index("Plan  ")
    assert html.index("always remote") < html.index("The plan</h2>")
    assert comparison.PURPOSE.split(".")[0] in html
    for row in comparison.rows(made):
        assert row.baseline in text
        assert row.baseline in html
    assert "worse" in next(line for line in text.splitlines() if line.startswith("Gap between tokens"))
    assert "The price of local prefills" in html


def test_without_a_baseline_nothing_is_compared() -> None:
    assert comparison.rows(facts()) == ()
    assert comparison.caveats(facts()) == ()
    assert "always remote" not in table.render(facts())
    assert "always remote" not in page.render(facts())


def test_the_best_workers_for_remote_prefills_alone_are_named() -> None:
    def alternative(degree: int, policy: PlannedPolicy, goodput: float, **more: Any) -> Alternative:
        predicted = dataclasses.replace(PLAN.predicted, goodput=Estimate(goodput, goodput, goodput))
        return Alternative((PlannedGroup("prefill", degree, 3, "h20"),), predicted, 1.0, policy=policy, **more)

    plan = dataclasses.replace(
        PLANNED,
        alternatives=(
            alternative(1, WEFT, 9.0),
            alternative(2, REMOTE, 0.39),
            alternative(4, REMOTE, 0.42),
            alternative(8, REMOTE, 0.9, runnable=False),
        ),
    )
    best = best_without_local(plan)
    assert best is not None
    assert best.groups[0].degree == 4
    made = dataclasses.replace(compared(), plan=plan)
    row = comparison.rows(made)[-1]
    assert row == comparison.Row("Sessions/s within the SLO, predicted", "0.51", "0.42", "service")
    assert "the best that the planner weighed are 3 x TP4 prefill." in " ".join(comparison.caveats(made))


def example() -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load((repository_root() / EXAMPLE).read_text())
    return body


def test_the_baseline_is_a_class_that_differs_in_its_policy_alone() -> None:
    manifest = example()
    service = DisaggInferenceService.model_validate({**manifest, "spec": with_baseline(manifest["spec"])})
    record = PlanRecord(spec=service.spec, plan=PLANNED, profile={}, request_hash="")
    live = live_json(Rendering(key=ServiceKey("n", "s"), uid="", record=record, settings=SETTINGS))
    assert live["routing"]["policy"] == "weft"
    assert live["routing"]["classes"] == {CLASS: {"policy": POLICY}}
    assert CLASS in live["qos"]["classes"], "requests may name it"
    plain = DisaggInferenceService.model_validate(manifest)
    assert planner_request(service.spec) == planner_request(plain.spec), "the plan is the same"


def test_a_class_of_that_name_is_left_alone() -> None:
    own = {"routing": {"classes": [{"name": CLASS, "policy": "ampd"}]}}
    assert with_baseline(own) == own
    assert with_baseline({})["routing"]["classes"] == [{"name": CLASS, "policy": POLICY}]


@pytest.mark.parametrize(
    ("routing", "plan", "words"),
    [
        ({}, PLANNED, ""),
        ({"policy": "ampd"}, PLANNED, ""),
        ({"policy": "weft", "mode": "imd"}, dataclasses.replace(PLANNED, policy=REMOTE), ""),
        ({}, dataclasses.replace(PLANNED, policy=REMOTE), "remote already"),
        ({"policy": "weft", "mode": "remote-jsq"}, PLANNED, "remote already"),
        ({"policy": "always-remote"}, PLANNED, "remote already"),
        ({}, dataclasses.replace(PLANNED, layout="colocated"), "no prefill workers"),
        ({"classes": [{"name": CLASS, "policy": "ampd"}]}, PLANNED, "of its own"),
        ({"classes": [{"name": CLASS, "policy": POLICY}]}, PLANNED, ""),
        ({"qos": {"classHeader": "X-Tier"}}, PLANNED, "another header"),
    ],
)
def test_there_is_no_baseline_where_it_would_be_the_same(routing: dict[str, str], plan: Plan, words: str) -> None:
    why = why_no_baseline({"routing": routing}, plan)
    assert (words in why) if words else why == ""
    assert why in notes(why)[0]


def test_the_largest_gap_is_left_out_where_the_machine_decided_it() -> None:
    steady = facts()
    assert hidden_reading(steady) == ""
    assert len(shown_readings(steady)) == len(steady.summary.attained)

    late = dataclasses.replace(steady, pace=EnginePace(lost_s=0.0, worst_step_s=0.1))
    assert {a.reading.itl for a in shown_readings(late)} == {"mean", "p95"}
    html = unescape(page.render(late))
    assert "this machine's CPU decided it" in html
    assert "100 ms late" in html

    real = dataclasses.replace(late, pace=None)
    assert len(shown_readings(real)) == len(real.summary.attained), "real engines are not excused"
