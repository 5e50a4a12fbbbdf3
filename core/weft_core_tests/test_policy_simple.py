"""The baselines: shortest queue, always remote, always local, co-located, a fixed share."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.inputs import LocalFigures, RemoteFigures, TaskFigures
from weft_core.policies.registry import parameters
from weft_core_tests.vectors import ask, fleets, local, locals_, remote, task, tasks, unknown_remotes

NONE = (0.0,)


def test_remote_jsq_counts_seconds_not_tasks() -> None:
    short, long = remote(own=0.01, queue=0.2, queued=2), remote(own=0.01, queue=0.9, queued=1)
    assert ask("remote-jsq", task(), local(), [long, short], NONE).short == (1, "shortest-finish")


def test_remote_jsq_takes_the_first_of_equals_and_stays_local_alone() -> None:
    assert ask("remote-jsq", task(), local(), [remote(), remote()], NONE).choice == 0
    assert ask("remote-jsq", task(), local(), [], NONE).short == (-1, "no-prefill-worker")


@given(tasks, locals_, fleets)
def test_remote_jsq_finishes_first(of: TaskFigures, here: LocalFigures, there: list[RemoteFigures]) -> None:
    found = ask("remote-jsq", of, here, there, NONE)
    finish = [w.prefill_s + w.read_s + w.back_s + w.queue_s for w in there]
    assert math.isnan(found.costs[0])
    assert found.costs[1:] == finish
    if there:
        assert found.choice == finish.index(min(finish))


@given(st.lists(unknown_remotes, min_size=1, max_size=5))
def test_remote_jsq_counts_tasks_where_it_cannot_predict(there: list[RemoteFigures]) -> None:
    queued = [worker.queued for worker in there]
    found = ask("remote-jsq", task(), local(), there, NONE)
    assert found.short == (queued.index(min(queued)), "profile-incomplete")


@given(tasks, locals_, fleets, st.data())
def test_the_rules_that_never_look(
    of: TaskFigures, here: LocalFigures, there: list[RemoteFigures], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(there))))
    far = ask("always-remote", of, here, there, NONE, order=order)
    assert far.short == ((order[0], "always-remote") if there else (-1, "no-prefill-worker"))
    assert ask("always-local", of, here, there, NONE).short == (-1, "always-local")
    assert ask("colocated", of, here, there, NONE).short == (-1, "colocated")


def test_fixed_x_worked_by_hand() -> None:
    half = parameters("fixed-x", overrides={"x": 0.5})
    assert ask("fixed-x", task(uniform=0.49), local(), [remote()], half).short == (-1, "share")
    assert ask("fixed-x", task(uniform=0.5), local(), [remote()], half).short == (0, "share")
    assert ask("fixed-x", task(uniform=0.0, later=False), local(), [remote()], half).short == (0, "first-round")


@pytest.mark.parametrize("x", [0, 1 / 3, 1 / 2, 2 / 3, 1])
def test_fixed_x_sends_its_share_local(x: float) -> None:
    params = parameters("fixed-x", overrides={"x": x})
    draws = [i / 600 for i in range(600)]
    here = sum(ask("fixed-x", task(uniform=u), local(), [remote()], params).choice == -1 for u in draws)
    assert here == pytest.approx(600 * x, abs=1)


@given(tasks, locals_, st.lists(unknown_remotes, min_size=1, max_size=4))
def test_a_fixed_share_also_holds_without_predictions(
    of: TaskFigures, here: LocalFigures, there: list[RemoteFigures]
) -> None:
    found = ask("fixed-x", of, here, there, parameters("fixed-x", overrides={"x": 0.5}))
    stays = of.round == 1.0 and of.uniform < 0.5
    assert (found.choice == -1) == stays
    assert found.reason == ("share" if stays else "profile-incomplete")
