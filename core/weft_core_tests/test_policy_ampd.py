"""AMPD's Algorithm 1 with Eq. (1) and (2), as printed."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.finish import printed_finish
from weft_core.policies.inputs import LocalFigures, RemoteFigures, TaskFigures
from weft_core.policies.registry import parameters
from weft_core_tests.vectors import Answer, ask, fleets, local, locals_, remote, task, tasks, unknown_remotes

PARAMS = parameters("ampd")
TASK = task(ttft=2.0, itl=0.05)


def itl_of(here: LocalFigures) -> float:
    if not math.isnan(here.windowed_itl):
        return here.windowed_itl
    return here.step_s if here.batch else 0.0


def decide(
    there: list[RemoteFigures], *, order: list[int] | None = None, itl: float = 0.05, queue: float = 0
) -> Answer:
    return ask("ampd", TASK, local(own=1.0, queue=queue, itl=itl), there, PARAMS, order=order)


def test_equation_2_worked_by_hand() -> None:
    assert printed_finish(remote(queue=1.0, own=0.5, read=0.3, back=0.3)) == 0.5 + 0.3 + 0.3 + 1.0


def test_lines_1_to_3_take_the_first_worker_with_slack_in_the_given_order() -> None:
    workers = [remote(ttft=1.0), remote(ttft=1.81), remote(ttft=1.8)]
    assert decide(workers, order=[1, 2, 0]).short == (2, "ttft-slack")
    assert decide(workers, order=[0, 1, 2]).choice == 0


def test_a_worker_without_samples_has_slack() -> None:
    assert decide([remote(ttft=9.0), remote()]).choice == 1


def test_lines_4_to_5_stay_local_when_decoding_has_slack() -> None:
    busy = [remote(ttft=1.9)]
    assert decide(busy, itl=0.0425).short == (-1, "itl-slack")


def test_a_decode_worker_without_samples_has_slack_by_its_predicted_step() -> None:
    busy = [remote(ttft=1.9)]
    for batch, step, slack in ((0, 9.0, True), (0, math.nan, True), (4, 0.0425, True), (4, 0.0426, False)):
        here = local(own=1.0, itl=math.nan, batch=batch, step=step)
        assert (ask("ampd", TASK, here, busy, PARAMS).reason == "itl-slack") == slack
    blind = local(own=1.0, itl=math.nan, batch=4, step=math.nan)
    assert ask("ampd", TASK, blind, busy, PARAMS).reason == "least-cost"


def test_lines_6_to_9_take_the_least_cost_worked_by_hand() -> None:
    busy = [remote(ttft=1.9, own=1.5, queue=3.0), remote(ttft=1.9, own=0.5, read=0.3, back=0.3, queue=0.05)]
    found = decide(busy, queue=0.4)
    assert found.costs == [1.4, 4.5, 0.5 + 0.3 + 0.3 + 0.05]
    assert found.short == (1, "least-cost")
    assert decide(busy).short == (-1, "least-cost")  # local 1.0 beats 1.15


def test_alpha_and_beta_move_the_gates() -> None:
    workers = [remote(ttft=1.5, own=9.0)]
    strict = parameters("ampd", overrides={"alpha": 0.5})
    assert ask("ampd", TASK, local(itl=0.04), workers, strict).reason == "itl-slack"
    both = parameters("ampd", overrides={"alpha": 0.5, "beta": 0.5})
    assert ask("ampd", TASK, local(itl=0.04), workers, both).short == (-1, "least-cost")


@given(tasks, locals_, fleets, st.data())
def test_the_decision_is_the_algorithms(
    of: TaskFigures, here: LocalFigures, there: list[RemoteFigures], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(there))))
    found = ask("ampd", of, here, there, PARAMS, order=order)
    slack = [i for i in order if math.isnan(there[i].windowed_ttft) or there[i].windowed_ttft <= 0.9 * of.ttft_slo]
    if slack:
        assert found.short == (slack[0], "ttft-slack")
    elif itl_of(here) <= 0.85 * of.itl_slo:
        assert found.short == (-1, "itl-slack")
    else:
        costs = [here.prefill_s + here.queue_s, *(w.prefill_s + w.read_s + w.back_s + w.queue_s for w in there)]
        assert found.costs == costs
        assert found.short == (costs.index(min(costs)) - 1, "least-cost")


@given(st.lists(unknown_remotes, min_size=1, max_size=5))
def test_without_a_prediction_the_shortest_queue_is_taken(there: list[RemoteFigures]) -> None:
    late = [replace(worker, windowed_ttft=9.0) for worker in there]
    found = decide(late, itl=9.0)
    queued = [worker.queued for worker in late]
    assert found.short == (queued.index(min(queued)), "profile-incomplete")
