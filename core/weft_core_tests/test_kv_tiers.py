import math

import pytest

from weft_core.kv_tiers import BYTES_PER_S, KVTier, KVTierError, TierSpeed, t_load, tier_from_text
from weft_core.timing import wait_and_load


def test_a_load_takes_its_latency_and_its_bytes() -> None:
    tier = KVTier("cpu", capacity_bytes=1e9, bytes_per_s=2e9, latency_s=0.001)
    assert tier.capacity_tokens(100_000) == 10_000
    assert tier.t_load(10_000, 100_000) == pytest.approx(0.001 + 0.5)
    assert tier.t_load(0, 100_000) == 0.0


@pytest.mark.parametrize(
    ("text", "tier"),
    [
        ("cpu:2e11:25e9:0.001", KVTier("cpu", 2e11, 25e9, 0.001)),
        ("cpu:200Gi", KVTier("cpu", 200 * 2.0**30, BYTES_PER_S["cpu"])),
        ("disk:2e12:6e9", KVTier("disk", 2e12, 6e9)),
        ("remote:1e13", KVTier("remote", 1e13, BYTES_PER_S["remote"])),
    ],
)
def test_tiers_are_read_from_text(text: str, tier: KVTier) -> None:
    assert tier_from_text(text) == tier
    assert tier_from_text(tier.text) == tier


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tape:1e9", "is not NAME:SIZE"),
        ("cpu", "is not NAME:SIZE"),
        ("cpu:1:2:3:4", "is not NAME:SIZE"),
        ("cpu:200Gb", "must be a number of bytes or end in Mi, Gi, Ti"),
        ("cpu:Gi", "must be a number of bytes or end in Mi, Gi, Ti"),
        ("cpu:1e9:fast", "bandwidth and latency numbers"),
        ("cpu:0", "size in bytes must be a number above 0, not 0"),
        ("cpu:nan", "size in bytes must be a number above 0, not nan"),
        ("cpu:1e9:-1", "bytes per second must be a number above 0, not -1"),
        ("cpu:1e9:1e9:-1", "latency must be 0 or more seconds, not -1"),
    ],
)
def test_other_texts_are_refused_with_what_is_allowed(text: str, words: str) -> None:
    with pytest.raises(KVTierError, match=words):
        tier_from_text(text)


def test_an_unknown_tier_is_refused() -> None:
    with pytest.raises(KVTierError, match="choose of cpu, disk, remote"):
        KVTier("tape", 1.0, math.pi)  # type: ignore[arg-type]


def test_loads_take_the_time_of_each_tier_one_after_the_other() -> None:
    speeds = {"cpu": TierSpeed(1000.0, 0.5), "disk": TierSpeed(100.0)}
    assert t_load({"cpu": 20, "disk": 3}, 10.0, speeds) == pytest.approx(0.5 + 0.2 + 0.3)
    assert t_load({"cpu": 0}, 10.0, speeds) == 0
    assert t_load({}, 10.0) == 0
    tier = KVTier("cpu", 1e9, 1000.0, 0.5)
    assert tier.t_load(20, 10.0) == t_load({"cpu": 20}, 10.0, speeds), "the simulator's and the router's"


def test_a_load_counts_where_it_is_longer_than_the_wait() -> None:
    assert wait_and_load(1.0, 0.5) == 1.0
    assert wait_and_load(1.0, 1.5) == 1.5
    assert math.isnan(wait_and_load(math.nan, 0.5))
    assert wait_and_load(math.inf, 0.5) == math.inf
