"""Sketches of cached prefixes: nothing that was added is missed, little else is taken for a member."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.prefix_sketch import ERROR, MAX_LINKS, MAX_TEXT, contains, covered, is_sketch, link_digest, sketch_of

links = st.lists(st.text(max_size=20), max_size=60, unique=True)


@given(added=links, other=links, scope=st.text(max_size=5))
def test_all_that_was_added_is_found(added: list[str], other: list[str], scope: str) -> None:
    digests = [link_digest(scope, link) for link in added]
    sketch = sketch_of(digests)
    assert is_sketch(sketch)
    assert covered(sketch, digests) == len(digests)
    rest = [link_digest(scope, link) for link in other if link not in added]
    assert covered(sketch, digests + rest) >= len(digests)


def test_few_others_are_taken_for_members() -> None:
    sketch = sketch_of([link_digest("", str(i)) for i in range(MAX_LINKS)])
    assert len(sketch) <= MAX_TEXT
    wrong = sum(covered(sketch, [link_digest("", f"other {i}")]) for i in range(20_000))
    assert wrong < 20_000 * ERROR


def test_a_prompt_is_followed_to_its_first_unknown_link() -> None:
    known = [link_digest("t", link) for link in "abc"]
    sketch = sketch_of(known)
    unknown = next(d for i in range(100) if not covered(sketch, [d := link_digest("t", f"x{i}")]))
    assert covered(sketch, [known[0], unknown, known[2]]) == 1
    assert covered("", known) == 0
    assert [contains(sketch, digest) for digest in (*known, unknown)] == [True, True, True, False]
    assert not contains("", known[0])
    assert sketch_of([]) == ""


def test_scopes_are_apart() -> None:
    assert len({link_digest("a", "bc"), link_digest("ab", "c"), link_digest("", "abc")}) == 3


def test_what_cannot_be_a_sketch_is_refused() -> None:
    assert not is_sketch("A" * (MAX_TEXT + 4))
    assert not is_sketch("A")
    assert not is_sketch("ä===")
    with pytest.raises(ValueError, match="at most"):
        sketch_of([i.to_bytes(16, "big") for i in range(MAX_LINKS + 1)])
