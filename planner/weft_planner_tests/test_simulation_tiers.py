"""Tiers below the GPUs: what was evicted is loaded instead of computed again, while a tier has it."""

import pytest

from weft_core.kv_tiers import KVTier, KVWrites
from weft_core.policies.retention import Retention
from weft_planner.simulation import Layout, Options, Outcome, PolicyChoice, SimulationError, Worker, simulate
from weft_planner.simulation.options import Change, Ended, Evicts
from weft_planner_tests.simulated import ONE_CLASS, profile, sample_of

KV_BYTES = 1000
FIRST, LATER = (600.0, 10.0, 8.0), (50.0, 10.0, 0.0)
OTHER = (600.0, 5.0, 0.0)
HISTORY = 610


def tier(name: str, tokens: float, *, tokens_per_s: float = 10_000.0, latency_s: float = 0.0) -> KVTier:
    return KVTier(name, tokens * KV_BYTES, tokens_per_s * KV_BYTES, latency_s)  # type: ignore[arg-type]


def run(
    *tiers: KVTier, kv: int = 1000, others: int = 1, ended: Ended = "free", evicts: Evicts = "sessions",
    writes: KVWrites = "through",
) -> Outcome:  # fmt: skip
    """Serve a session of two rounds on one engine, and others during its pause that need the memory."""
    sessions = [(0.0, [FIRST, LATER]), *((2.0 + k, [OTHER]) for k in range(others))]
    return serve(sessions, *tiers, kv=kv, ended=ended, evicts=evicts, writes=writes)


def serve(
    sessions: list[tuple[float, list[tuple[float, float, float]]]],
    *tiers: KVTier,
    kv: int,
    retention: Retention = "lru",
    ended: Ended = "free",
    evicts: Evicts = "sessions",
    writes: KVWrites = "through",
) -> Outcome:
    return simulate(
        sample_of(sessions),
        Layout((), (Worker(1),), "colocated"),
        {"gpu": profile(kv=kv)},
        PolicyChoice(route="colocated", mode="", order="fcfs"),
        ONE_CLASS,
        options=Options(
            tiers=tiers, retention=retention, ended=ended, evicts=evicts, writes=writes, warm_up=0.0, cool_down=0.0,
            chunked=False,
        ),
    )  # fmt: skip


def test_what_was_evicted_is_computed_again_without_a_tier() -> None:
    roomy, tight = run(kv=100_000), run()
    assert (roomy.evictions, tight.evictions) == (0, 1)
    assert (roomy.recomputed_tokens, tight.recomputed_tokens) == (0, HISTORY)
    assert tight.ttft[1] > 2 * roomy.ttft[1]


def test_a_tier_gives_it_back_in_the_time_of_a_load() -> None:
    roomy, below = run(kv=100_000), run(tier("cpu", 5000, latency_s=0.003))
    assert (below.evictions, below.recomputed_tokens, below.loaded_tokens) == (1, 0, HISTORY)
    assert below.ttft[1] == pytest.approx(roomy.ttft[1] + 0.003 + HISTORY / 10_000)


def test_what_was_not_evicted_is_not_loaded() -> None:
    roomy = run(tier("cpu", 5000), kv=100_000)
    assert (roomy.loaded_tokens, roomy.recomputed_tokens) == (0, 0)


def test_a_full_tier_gives_its_oldest_to_the_next() -> None:
    roomy = run(kv=100_000, others=3)
    lost = run(tier("cpu", 1300), others=3)
    assert (lost.loaded_tokens, lost.recomputed_tokens) == (0, HISTORY)
    found = run(tier("cpu", 1300), tier("disk", 5000, tokens_per_s=2000), others=3)
    assert (found.loaded_tokens, found.recomputed_tokens) == (HISTORY, 0)
    assert found.ttft[1] == pytest.approx(roomy.ttft[1] + HISTORY / 2000)


def test_by_value_a_tier_has_what_the_gpus_lost_and_nothing_else() -> None:
    """Of three sessions in GPU memory the longest idle goes down; written through, the tier has the last one twice."""
    sessions = [*((float(k), [FIRST, LATER]) for k in range(3)), (4.0, [OTHER])]
    through = serve(sessions, tier("cpu", 700), kv=2000)
    assert (through.evictions, through.loaded_tokens, through.recomputed_tokens) == (1, 0, HISTORY)
    evicted = serve(sessions, tier("cpu", 700), kv=2000, retention="value")
    assert (evicted.evictions, evicted.loaded_tokens, evicted.recomputed_tokens) == (1, HISTORY, 0)
    assert serve(sessions, kv=2000, retention="value").recomputed_tokens == HISTORY


def test_written_on_eviction_a_tier_has_what_the_gpus_lost_and_nothing_else() -> None:
    """As by value, but the least recently used goes first."""
    sessions = [*((float(k), [FIRST, LATER]) for k in range(3)), (4.0, [OTHER])]
    through = serve(sessions, tier("cpu", 700), kv=2000)
    evicted = serve(sessions, tier("cpu", 700), kv=2000, writes="eviction")
    assert (through.loaded_tokens, through.recomputed_tokens) == (0, HISTORY)
    assert (evicted.evictions, evicted.loaded_tokens, evicted.recomputed_tokens) == (1, HISTORY, 0)
    assert evicted.ttft[1] == pytest.approx(run(kv=100_000).ttft[1] + HISTORY / 10_000)


def test_written_on_eviction_a_tier_has_the_part_that_others_needed() -> None:
    """Room of 400 tokens is enough: 215 are lost for the other's prompt and, one by one, for its answer."""
    part = run(evicts="tokens")
    found = run(tier("cpu", 400), evicts="tokens", writes="eviction")
    assert part.recomputed_tokens == 215
    assert (found.recomputed_tokens, found.loaded_tokens) == (0, 215)
    assert run(tier("cpu", 400), evicts="tokens").loaded_tokens == 0, "written through, all 610 need room"
    small = run(tier("cpu", 200), evicts="tokens", writes="eviction")
    assert (small.recomputed_tokens, small.loaded_tokens) == (211, 4), "for the prompt at once, which is too much"


def test_tiers_come_once_each_from_the_fastest_to_the_slowest() -> None:
    with pytest.raises(SimulationError, match="tiers: give each of cpu, disk, remote at most once, in this order"):
        Options(tiers=(tier("disk", 10), tier("cpu", 10)))


def routed(tokens_per_s: float) -> Outcome:
    """Serve a session of two rounds with a prefill worker beside; between them it is evicted into a tier."""
    later = (900.0, 10.0, 0.0)  # more than its history, so that it may be computed again
    return simulate(
        sample_of([(0.0, [FIRST, later]), (2.0, [(950.0, 5.0, 0.0)])]),
        Layout((Worker(1),), (Worker(1),)),
        {"gpu": profile(kv=1550)},
        PolicyChoice(route="weft", mode="ia", order="fcfs"),
        ONE_CLASS,
        options=Options(
            tiers=(tier("cpu", 5000, tokens_per_s=tokens_per_s),), warm_up=0.0, cool_down=0.0, chunked=False,
            history="recompute", handover="pull",
        ),
    )  # fmt: skip


def test_a_route_weighs_the_load_against_computing_the_history_elsewhere() -> None:
    fast, slow = routed(1e6), routed(10.0)
    assert (fast.evictions, slow.evictions) == (1, 1)
    assert (fast.loaded_tokens, fast.recomputed_tokens) == (HISTORY, 0)
    assert (slow.loaded_tokens, slow.recomputed_tokens) == (0, HISTORY), "a minute of loading"


def test_engines_that_know_of_no_sessions_keep_what_ended_ones_left() -> None:
    """The last of the others needs room, and the KV of the session is older than what the one before left."""
    freed, kept = (run(kv=1300, others=2, ended=ended) for ended in ("free", "keep"))
    assert (freed.evictions, freed.recomputed_tokens) == (0, 0)
    assert (kept.evictions, kept.recomputed_tokens) == (1, HISTORY), "its own; what ended ones left is nobody's"
    assert kept.kv_peak[-1] == freed.kv_peak[-1] < 1300, "what ended ones left is not in use"
    assert run(tier("cpu", 5000), kv=1300, others=2, ended="keep").loaded_tokens == HISTORY
    assert run(kv=100_000, others=2, ended="keep").ttft[1] == pytest.approx(freed.ttft[1])


def test_engines_that_change_their_roles_have_to_become_empty() -> None:
    with pytest.raises(SimulationError, match="ended: 'keep' goes without changes of roles"):
        Options(ended="keep", changes=(Change(1.0, 0, "off"),))


def test_engines_drop_no_more_than_others_need() -> None:
    """A cache of 1,000 tokens holds the other's 605 and the beginning of the session's 610."""
    part = run(evicts="tokens")
    assert part.evictions == 1, "for the prompt, and again for each token of the answer"
    assert part.recomputed_tokens == HISTORY + 605 - 1000
    found = run(tier("cpu", 5000), evicts="tokens")
    assert (found.recomputed_tokens, found.loaded_tokens) == (0, part.recomputed_tokens)
    assert found.ttft[1] == pytest.approx(run(kv=100_000).ttft[1] + part.recomputed_tokens / 10_000)
