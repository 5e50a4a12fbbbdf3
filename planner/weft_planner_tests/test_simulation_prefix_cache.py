"""Prompts that prefill workers keep in their prefix caches, worked by hand.

A token takes 1 ms to compute and 0.1 ms to send, a step 10 ms; decode workers have twice the KV memory.
"""

from collections.abc import Sequence

import pytest

from weft_core.cost import CostProfile, DecodePiece, PrefillPiece, TransferCost
from weft_planner.simulation import Layout, Options, Outcome, PolicyChoice, SloClass, Worker, simulate
from weft_planner.simulation.inputs import initial_state
from weft_planner.simulation.options import Handover, History
from weft_planner.simulation.records import KEPT
from weft_planner.simulation.run import run_events
from weft_planner_tests.simulated import Rounds, profile, sample_of

COMPUTE, SEND, STEP = 1e-3, 1e-4, 0.01
TWICE = ((1000.0, 11.0, 9.0), (100.0, 1.0, 0.0))
"""Two rounds: the second has a history of 1,011 tokens and comes 9 s after the first's end."""
READS = PolicyChoice(route="remote-jsq", mode="", order="fcfs")
PEERS = PolicyChoice(route="cache-aware", mode="", order="fcfs")


def costs(kv: int) -> CostProfile:
    return profile(
        prefill=[PrefillPiece(1e-12, COMPUTE)], decode=[DecodePiece(STEP)], transfer=TransferCost(0.0, SEND), kv=kv
    )


def run(
    sessions: Sequence[tuple[float, Rounds]],
    policy: PolicyChoice,
    *,
    kv: int = 100_000,
    prefill: int = 1,
    handover: Handover = "pull",
    history: History = "read",
    prefixes: Sequence[float] = (),
    prefix_cache: bool = True,
) -> Outcome:
    layout = Layout((Worker(1),) * prefill, (Worker(2),))
    options = Options(
        links="none", handover=handover, history=history, prefix_cache=prefix_cache, warm_up=0.0, cool_down=0.0
    )
    return simulate(
        sample_of(sessions, prefixes=prefixes), layout, {"gpu": costs(kv)}, policy, [SloClass(9, 9)], options=options
    )


def ttft(*, computed: float = 0, read: float = 0, back: float = 0) -> float:
    """Return a lone round's TTFT."""
    return computed * COMPUTE + (read + back) * SEND + STEP


def test_a_router_that_reads_no_history_computes_what_its_prefill_worker_lacks() -> None:
    outcome = run([(0.0, TWICE)], PEERS)
    assert outcome.ttft[0] == pytest.approx(ttft(computed=1000, back=1000))
    assert outcome.ttft[1] == pytest.approx(ttft(computed=111, back=100)), "1,000 of 1,111 are there; 100 are sent"
    assert (outcome.read_tokens, outcome.back_tokens, outcome.recomputed_tokens) == (0, 1100, 11)


def test_a_pushing_engine_sends_the_whole_prompt_of_such_a_router() -> None:
    outcome = run([(0.0, TWICE)], PEERS, handover="push")
    assert outcome.ttft[1] == pytest.approx(ttft(computed=111, back=1111) - STEP)
    assert outcome.back_tokens == 2111


@pytest.mark.parametrize("policy", [PEERS, READS])
def test_an_engine_without_a_prefix_cache_computes_and_sends_all_of_every_prompt(policy: PolicyChoice) -> None:
    def push(prefixes: Sequence[float]) -> Outcome:
        two = [(0.0, TWICE), (30.0, TWICE)]
        return run(two, policy, handover="push", history="recompute", prefixes=prefixes, prefix_cache=False)

    for outcome in (push(()), push([400.0, 400.0])):
        prompts = [1000, 1111, 1000, 1111]
        assert outcome.ttft == pytest.approx([ttft(computed=tokens, back=tokens) - STEP for tokens in prompts])
        assert outcome.back_tokens == sum(prompts)


def test_a_read_history_is_read_as_far_as_the_cache_lacks_it() -> None:
    outcome = run([(0.0, TWICE)], READS)
    assert outcome.ttft[1] == pytest.approx(ttft(computed=100, read=11, back=100))
    assert (outcome.read_tokens, outcome.recomputed_tokens) == (11, 0)


def test_what_is_recomputed_is_fetched_as_far_as_the_decode_worker_lacks_it() -> None:
    outcome = run([(0.0, TWICE)], READS, history="recompute")
    assert outcome.ttft[1] == pytest.approx(ttft(computed=111, back=100))


def test_another_prefill_worker_has_nothing_of_the_prompt() -> None:
    turns = PolicyChoice(route="round-robin", mode="", order="fcfs")
    outcome = run([(0.0, TWICE)], turns, prefill=2)
    assert outcome.route.tolist() == [0, 1]
    assert outcome.ttft[1] == pytest.approx(ttft(computed=1111, back=100))
    third = run([(0.0, (*TWICE[:1], (100.0, 10.0, 9.0), (100.0, 1.0, 0.0)))], turns, prefill=2)
    assert third.ttft[2] == pytest.approx(ttft(computed=1221 - 1000, back=100)), "the first worker still has its prompt"


BOTH = [(0.0, TWICE), (2.0, TWICE)]
"""The rounds come at 0, 2, 10.21 and 12.21 s, one after the other."""


@pytest.mark.parametrize(
    ("policy", "first", "second"),
    [
        (PEERS, ttft(computed=611, back=100), ttft(computed=722, back=100)),
        (READS, ttft(computed=100, read=511, back=100), ttft(computed=100, read=622, back=100)),
    ],
)
def test_the_least_recently_used_prompt_goes_first_its_end_before_its_beginning(
    policy: PolicyChoice, first: float, second: float
) -> None:
    """Of 1,500 tokens, the second session's 1,000 leave the first 500; its 1,111 then leave the second 389."""
    outcome = run(BOTH, policy, kv=1500)
    assert outcome.ttft[[1, 3]] == pytest.approx([first, second])


def test_prompts_stay_while_there_is_room() -> None:
    outcome = run(BOTH, PEERS, kv=2111)  # 1,000 kept beside 1,111 at work
    assert outcome.ttft[[1, 3]] == pytest.approx([ttft(computed=111, back=100)] * 2)


@pytest.mark.parametrize(("policy", "computed", "read"), [(PEERS, 611, 0), (READS, 100, 511)])
def test_a_prompt_that_went_while_its_round_was_queued_is_not_there(
    policy: PolicyChoice, computed: float, read: float
) -> None:
    """At 10.21 s the second round comes behind 200 tokens that run and 1,000 that wait; these take 500 of its 1,000.

    It begins when the memory of the 1,000 is free, as their KV has been sent.
    """
    others = [(10.15, ((200.0, 1.0, 0.0),)), (10.18, ((1000.0, 1.0, 0.0),))]
    outcome = run([(0.0, TWICE), *others], policy, kv=1700)
    assert outcome.arrival[1] == pytest.approx(10.21)
    wait = 10.15 + 1200 * COMPUTE + 1000 * SEND - 10.21
    assert outcome.ttft[1] == pytest.approx(wait + ttft(computed=computed, read=read, back=100))


SYMMETRIC = Layout((), (Worker(1), Worker(1)), "symmetric")
ELSEWHERE = PolicyChoice(route="always-remote", mode="", order="fcfs")
CROSSED = [(0.0, TWICE), (2.0, ((1000.0, 300.0, 0.0),))]
"""Each session is bound to the worker at which the other prefills. The second one is over when the first comes back."""


def crossed(policy: PolicyChoice, kv: int, sessions: Sequence[tuple[float, Rounds]] = CROSSED) -> Outcome:
    options = Options(links="none", handover="pull", warm_up=0.0, cool_down=0.0)
    return simulate(sample_of(sessions), SYMMETRIC, {"gpu": costs(kv)}, policy, [SloClass(9, 9)], options=options)


def test_a_worker_with_both_roles_keeps_the_prompts_of_others() -> None:
    outcome = crossed(PEERS, 100_000, CROSSED[:1])
    assert outcome.ttft[1] == pytest.approx(ttft(computed=111, back=100)), "1,000 of 1,111 are there"
    outcome = crossed(ELSEWHERE, 100_000, CROSSED[:1])
    assert outcome.ttft[1] == pytest.approx(ttft(computed=100, read=11, back=100))


@pytest.mark.parametrize("kv", [1500, 2000])
def test_its_own_sessions_leave_the_room_for_them(kv: int) -> None:
    """The second session holds up to 1,300 tokens where the first one's prompt is kept.

    Its prefill takes the place of the first one's idle KV, so all of that comes back.
    """
    outcome = crossed(PEERS, kv)
    assert outcome.finished[2] < outcome.arrival[1]
    assert outcome.evictions == 1
    assert outcome.ttft[1] == pytest.approx(ttft(computed=1111 - (kv - 1300), back=1111))


def test_a_shared_beginning_is_computed_once_per_prefill_worker() -> None:
    first = ((1000.0, 1.0, 0.0),)
    outcome = run([(0.0, first), (5.0, first)], PEERS, prefixes=[400.0, 400.0])
    assert outcome.ttft[1] == pytest.approx(ttft(computed=600, back=600)), "the decode worker has it, too"


@pytest.mark.parametrize("prefill", [1, 2])
def test_a_round_that_is_preempted_before_its_first_token_leaves_one_prompt(prefill: int) -> None:
    """Some size of memory is full just when the third session's KV has come: it is prefilled again, or elsewhere."""
    long, short = ((1000.0, 800.0, 0.0),), ((1000.0, 5.0, 1.0), (50.0, 5.0, 0.0))
    sample = sample_of([(0.0, long), (2.0, long), (4.0, short)])
    turns = PolicyChoice(route="round-robin", mode="", order="fcfs")
    layout = Layout((Worker(1),) * prefill, (Worker(2),))
    options = Options(links="none", handover="pull", warm_up=0.0, cool_down=0.0)
    again = 0
    for kv in range(1780, 1825):
        end = initial_state(sample, layout, {"gpu": costs(kv)}, turns, (SloClass(9, 9),), options=options, seed=1)
        run_events(end, turns, options)
        again += end.totals["returned_tokens"][0] > 3050
        for number in range(prefill):
            kept = end.rows["kept"][end.rows["route"] == number]
            assert end.workers["kept"][number] == kept.sum()
            assert end.lists["length"][1 + KEPT * len(layout.workers) + number] == (kept > 0).sum()
    assert again > 0
