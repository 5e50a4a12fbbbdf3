"""How long a build takes, before it begins and on the way."""

import re
import threading

import pytest

from weft_e2e.cluster.estimate import duration_words, remaining_s, share_words
from weft_e2e.cluster.progress import Work


@pytest.mark.parametrize(("cores", "expected_s"), [(1, 1200), (2, 600), (4, 300), (64, 150)])
def test_before_it_begins_the_cores_decide(cores: int, expected_s: float) -> None:
    assert remaining_s(total=600, done=0, elapsed_s=0, cores=cores) == pytest.approx(expected_s)


@pytest.mark.parametrize("slower", [0.5, 1.0, 2.0, 5.0])
def test_it_follows_the_speed_that_was_measured(slower: float) -> None:
    """Half done: what is left takes as long as the first half, within a quarter, however wrong the expectation was."""
    total = 600.0
    found = remaining_s(total=total, done=total / 2, elapsed_s=slower * total / 2, cores=2)
    assert found == pytest.approx(slower * total / 2, rel=1 / 4)


def test_it_is_kept_where_the_machine_is_as_fast_as_expected() -> None:
    for done in range(0, 601, 10):
        assert remaining_s(total=600, done=done, elapsed_s=done, cores=2) == pytest.approx(600 - done)


def test_a_start_that_shows_nothing_changes_little() -> None:
    assert remaining_s(total=600, done=0, elapsed_s=20, cores=2) < 750


def test_nothing_to_do_takes_no_time() -> None:
    assert remaining_s(total=0, done=0, elapsed_s=3, cores=2) == 0
    assert remaining_s(total=60, done=61, elapsed_s=60, cores=2) == 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "less than a minute"),
        (49, "less than a minute"),
        (50, "about a minute"),
        (60, "about a minute"),
        (61, "about 2 minutes"),
        (599, "about 10 minutes"),
        (601, "about 11 minutes"),
    ],
)
def test_durations_are_said_in_whole_minutes(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words


def test_all_is_done_only_at_the_end() -> None:
    assert share_words(total=600, done=0) == "0 %"
    assert share_words(total=600, done=599.99) == "99 %"
    assert share_words(total=600, done=600) == "100 %"


def test_work_says_at_the_start_what_is_made_and_then_each_part_that_is() -> None:
    lines: list[str] = []
    work = Work({"programs": 300.0, "images": 100.0}, lines.append)
    with work.reported():
        with work.part("programs"):
            work.resize("programs", 0.5)
            work.advance("programs", 0.5)
            assert work.state().startswith("30 % done, "), "75 of 250"
            assert work.state().endswith(" left (programs)")
        with pytest.raises(OSError, match="disk"), work.part("images"):
            raise OSError("disk full")
    assert re.fullmatch(r"to make: programs, images; about \d+ minutes on this machine's .* cores?", lines[0])
    assert [line.partition(" in ")[0] for line in lines[1:]] == ["made programs"], "a part that failed is not made"


def test_work_says_how_far_it_is_while_it_goes_on() -> None:
    said = threading.Event()
    work = Work({"programs": 300.0}, lambda line: said.set() if line.startswith("25 % done, ") else None, every_s=0.001)
    with work.reported(), work.part("programs"):
        work.advance("programs", 0.25)
        assert said.wait(20)


def test_no_work_is_not_announced() -> None:
    lines: list[str] = []
    with Work({}, lines.append).reported():
        assert lines == []
    assert lines == []
