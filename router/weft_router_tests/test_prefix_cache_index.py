"""What caches may hold is guessed from what was sent: never more than that, and no longer than there is room."""

from hypothesis import given
from hypothesis import strategies as st

from weft_core.policies.live_binding import Binding
from weft_core.policies.snapshot import BindingView
from weft_router.routing.prefix_cache_index import MOST_LINKS, PrefixCacheIndex, prefix_chain, token_lengths


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def chain(text: str) -> tuple[list[str], list[int]]:
    """Return a chain with a link for each letter, of 10 tokens each."""
    return [text[: i + 1] for i in range(len(text))], [10 * (i + 1) for i in range(len(text))]


def test_the_longest_prefix_of_each_worker_counts() -> None:
    known = PrefixCacheIndex(clock=Clock())
    known.record("a", *chain("hello"))
    known.record("b", *chain("help"))
    assert known.hits(*chain("helping")) == {"a": 30, "b": 40}
    assert known.hits(*chain("world")) == {}
    assert known.hits(*chain("helping"), scope="acme") == {}, "tenants' caches are apart"
    assert known.hits([], []) == {}


def test_a_worker_that_took_in_more_than_it_holds_has_forgotten() -> None:
    known = PrefixCacheIndex(clock=Clock())
    known.record("a", *chain("hello"))
    known.record("a", *chain("hello"))  # nothing new: nothing is pushed out
    assert known.hits(*chain("hello"), capacity={"a": 100}) == {"a": 50}
    known.record("a", *chain("0123456789"))
    assert known.hits(*chain("hello"), capacity={"a": 100}) == {"a": 50}
    known.record("a", *chain("x"))
    assert known.hits(*chain("hello"), capacity={"a": 100}) == {}
    assert known.hits(*chain("hello"), capacity={"a": 0}) == {"a": 50}, "a capacity that is not known"
    assert known.hits(*chain("hello")) == {"a": 50}


def test_a_prompt_counts_for_a_moment_where_it_was_sent_last() -> None:
    clock = Clock()
    known = PrefixCacheIndex(clock=clock)
    known.record("a", *chain("hello"))
    known.record("b", *chain("help"))
    assert known.recent(*chain("helping"), within_s=5) == {"b": 40}
    assert known.recent(*chain("hello"), within_s=5) == {"b": 30, "a": 50}
    assert known.recent(*chain("hello"), scope="acme", within_s=5) == {}
    known.forget("b")
    assert known.recent(*chain("help"), within_s=5) == {}
    clock.now = 6.0
    assert known.recent(*chain("hello"), within_s=5) == {}


def test_an_engine_that_began_anew_has_nothing() -> None:
    clock = Clock()
    known = PrefixCacheIndex(ttl_s=100.0, clock=clock)
    known.record("a", *chain("hello"))
    known.forget("a")
    known.forget("nobody")
    assert known.hits(*chain("hello")) == {}
    known.record("a", *chain("hell"))
    assert known.hits(*chain("hello")) == {"a": 40}
    clock.now = 101.0
    assert known.hits(*chain("hello")) == {}
    known.record("a", *chain("x"))
    assert len(known) == 1
    known.retain(["b"])
    assert known.hits(*chain("x")) == {}


def test_the_least_recently_sent_is_dropped_at_the_limit() -> None:
    known = PrefixCacheIndex(limit=6, clock=Clock())
    known.record("a", *chain("abc"))
    known.record("a", *chain("xyz"))
    known.record("a", *chain("abc"))
    known.record("a", *chain("q"))
    assert len(known) == 6
    assert known.hits(*chain("abc")) == {"a": 30}
    assert known.hits(*chain("xyz")) == {"a": 30}, "a digest names all before it"
    known.record("a", *chain("rst"))
    assert known.hits(*chain("xyz")) == {}


prompts = st.text("ab", max_size=5)


@given(st.lists(st.tuples(st.sampled_from("uvw"), prompts, st.booleans()), max_size=25), prompts, st.integers(0, 90))
def test_it_says_what_remembering_everything_would(sent: list[tuple[str, str, bool]], prompt: str, room: int) -> None:
    known = PrefixCacheIndex(clock=Clock())
    held: dict[str, dict[str, int]] = {}
    taken: dict[str, int] = {}
    for worker, text, anew in sent:
        if anew:
            known.forget(worker)
            held[worker] = {}
        known.record(worker, *chain(text))
        mine = held.setdefault(worker, {})
        common = max((10 * i for i in range(len(text) + 1) if text[:i] in mine and i), default=0)
        taken[worker] = taken.get(worker, 0) + max(0, 10 * len(text) - common)
        for i in range(len(text)):
            mine[text[: i + 1]] = taken[worker]
    expected = {}
    for worker, mine in held.items():
        for i in range(len(prompt), 0, -1):
            then = mine.get(prompt[:i])
            if then is not None and (room == 0 or taken[worker] - then <= room):
                expected[worker] = 10 * i
                break
    capacity = dict.fromkeys("uvw", room)
    found = known.hits(*chain(prompt), capacity=capacity)
    assert found.keys() == expected.keys() or any(anew for _, _, anew in sent)
    assert all(found[worker] == expected[worker] for worker in found.keys() & expected.keys())


def test_bindings_read_the_hits() -> None:
    known = PrefixCacheIndex(clock=Clock())
    known.record("b", *chain("hello"))
    views = [BindingView(name, 100, 1000, 1, 1.0) for name in "abc"]
    hits = known.hits(*chain("hello!"))
    assert Binding("prefix-aware").choose(views, needed_kv=60, prefix_hit=hits) == "b"
    assert Binding("kv-aware").choose(views, needed_kv=60, prefix_hit=hits) == "b"
    assert Binding("kv-headroom").choose(views, needed_kv=60, prefix_hit=hits) == "a"


@given(st.text(max_size=60), st.text(max_size=60), st.integers(1, 9))
def test_chains_of_plain_prompts_agree_as_far_as_the_prompts_do(a: str, b: str, block: int) -> None:
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    left, sizes = prefix_chain(a, block=block)
    right, _ = prefix_chain(b, block=block)
    shared = sum(x == y for x, y in zip(left, right, strict=False))
    assert shared == min(same // block, MOST_LINKS)
    assert sizes == [block * (i + 1) for i in range(len(left))]
    ids = [ord(c) for c in a]
    assert len(prefix_chain(ids, block=block)[0]) == len(left)
    assert not left or prefix_chain(ids, block=block)[0] != left


def test_sizes_become_tokens() -> None:
    assert token_lengths([0, 400, 40], units_per_token=4.0) == [0, 100, 110]
