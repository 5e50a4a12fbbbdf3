"""AMPD's Algorithm 1 with Eq. (1) and (2), as printed."""

import math

from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.catalogue import parameters
from weft_core.policies.codes import AMPD
from weft_core.policies.finish import printed_finish
from weft_core_tests.vectors import Answer, ask, fleets, local, locals_, remote, task, tasks, unknown_remotes

PARAMS = parameters("ampd")
TASK = task(ttft=2.0, itl=0.05)


def decide(there: list[list[float]], *, order: list[int] | None = None, itl: float = 0.05, queue: float = 0) -> Answer:
    return ask(AMPD, TASK, local(own=1.0, queue=queue, itl=itl), there, PARAMS, order=order)


def test_equation_2_worked_by_hand() -> None:
    assert printed_finish([1.0, 0.5, 0.3, 0.3, 0, 0, 0, 0, 0, 0], 0) == 0.5 + 0.3 + 0.3 + 1.0


def test_lines_1_to_3_take_the_first_worker_with_slack_in_the_given_order() -> None:
    workers = [remote(ttft=1.0), remote(ttft=1.81), remote(ttft=1.8)]
    assert decide(workers, order=[1, 2, 0]).short == (2, "ttft-slack")
    assert decide(workers, order=[0, 1, 2]).choice == 0


def test_a_worker_without_samples_has_slack() -> None:
    assert decide([remote(ttft=9.0), remote()]).choice == 1


def test_lines_4_to_5_stay_local_when_decoding_has_slack() -> None:
    busy = [remote(ttft=1.9)]
    assert decide(busy, itl=0.0425).short == (-1, "itl-slack")
    assert decide(busy, itl=math.nan).reason == "itl-slack"


def test_lines_6_to_9_take_the_least_cost_worked_by_hand() -> None:
    busy = [remote(ttft=1.9, own=1.5, queue=3.0), remote(ttft=1.9, own=0.5, read=0.3, back=0.3, queue=0.05)]
    found = decide(busy, queue=0.4)
    assert found.costs == [1.4, 4.5, 0.5 + 0.3 + 0.3 + 0.05]
    assert found.short == (1, "least-cost")
    assert decide(busy).short == (-1, "least-cost")  # local 1.0 beats 1.15


def test_alpha_and_beta_move_the_gates() -> None:
    workers = [remote(ttft=1.5, own=9.0)]
    strict = parameters("ampd", overrides={"alpha": 0.5})
    assert ask(AMPD, TASK, local(itl=0.04), workers, strict).reason == "itl-slack"
    both = parameters("ampd", overrides={"alpha": 0.5, "beta": 0.5})
    assert ask(AMPD, TASK, local(itl=0.04), workers, both).short == (-1, "least-cost")


@given(tasks, locals_, fleets, st.data())
def test_the_decision_is_the_algorithms(
    of: list[float], here: list[float], there: list[list[float]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(there))))
    found = ask(AMPD, of, here, there, PARAMS, order=order)
    slack = [i for i in order if math.isnan(there[i][4]) or there[i][4] <= 0.9 * of[3]]
    if slack:
        assert found.short == (slack[0], "ttft-slack")
    elif math.isnan(here[4]) or here[4] <= 0.85 * of[4]:
        assert found.short == (-1, "itl-slack")
    else:
        costs = [here[1] + here[0], *(w[1] + w[2] + w[3] + w[0] for w in there)]
        assert found.costs == costs
        assert found.short == (costs.index(min(costs)) - 1, "least-cost")


@given(st.lists(unknown_remotes, min_size=1, max_size=5))
def test_without_a_prediction_the_shortest_queue_is_taken(there: list[list[float]]) -> None:
    late = [[*worker[:4], 9.0, *worker[5:]] for worker in there]
    found = decide(late, itl=9.0)
    queued = [worker[5] for worker in late]
    assert found.short == (queued.index(min(queued)), "profile-incomplete")
