"""Shares of the kill points: together they are all of them."""

import argparse

import pytest

from weft_operator_tests.kill_points import Point, a_share, share_of

POINTS = [Point("create", f"PATCH services/{n}", 1, side) for n in range(9) for side in ("before", "after")]


def test_shares_are_all_points_and_each_is_in_one() -> None:
    shares = [share_of(POINTS, f"{number}/4") for number in range(1, 5)]
    assert sorted(point for share in shares for point in share) == sorted(POINTS)
    assert {len(share) for share in shares} == {4, 5}
    assert sorted(share_of(POINTS, "1/1")) == sorted(POINTS)
    assert all({point.side for point in share} == {"before", "after"} for share in shares)


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", "1/0"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="1/8"):
        a_share(text)
