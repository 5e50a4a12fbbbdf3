"""KV below a worker's GPU memory: how much a tier holds, and how long loading from it takes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from weft_core.timing import load_seconds

KVTierName = Literal["cpu", "disk", "remote"]
TIER_NAMES: tuple[KVTierName, ...] = get_args(KVTierName)
"""From the fastest to the slowest: what one has no room for goes to the next."""

KVWrites = Literal["through", "eviction"]
KV_WRITES: tuple[KVWrites, ...] = get_args(KVWrites)
"""When KV is written to tiers: as soon as it is whole, or when GPU memory loses it, so that nothing is kept twice."""

BYTES_PER_S: dict[KVTierName, float] = {"cpu": 25e9, "disk": 5e9, "remote": 5e9}
"""What is taken where nothing was measured: half of PCIe 5.0 x16 for host memory, a PCIe 4.0 NVMe drive, and one
50 Gb/s flow to a remote store."""

DISK_FULL, DISK_SLOW, DISK_FAILED, DISK_SILENT = "disk-full", "disk-slow", "disk-failed", "disk-silent"
"""Faults of a tier of files, as heartbeats name them: others leave it less than half of its size; it answers slowly;
it cannot be written to; what keeps it in order does not answer."""
DISK_FAULTS = (DISK_FAILED, DISK_SILENT, DISK_FULL, DISK_SLOW)
"""The worst first."""
EVENTS_MISSING, EVENTS_LOST = "events-missing", "events-lost"
EVENTS_BLOCK_SIZE, EVENTS_DIFFER = "events-block-size", "events-differ"
"""Faults of KV events: none come though prompts are served; batches are lost, out of order or unreadable again and
again; blocks have several sizes; events come, and prompts that were served are not in them."""
EVENT_FAULTS = (EVENTS_MISSING, EVENTS_BLOCK_SIZE, EVENTS_DIFFER, EVENTS_LOST)
"""The worst first."""


@dataclass(frozen=True, slots=True)
class TierSpeed:
    """How fast KV is loaded from a tier."""

    bytes_per_s: float
    latency_s: float = 0.0


SPEEDS: Mapping[str, TierSpeed] = {name: TierSpeed(speed) for name, speed in BYTES_PER_S.items()}
"""Those of all tiers where nothing was measured."""

UNITS = {"Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


class KVTierError(ValueError):
    """Report a tier that cannot be; the message names what is wrong and what is allowed."""


@dataclass(frozen=True, slots=True)
class KVTier:
    """One tier of a worker: its size in bytes, the bandwidth at which KV is loaded from it, and a load's latency."""

    name: KVTierName
    capacity_bytes: float
    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what holds nothing or loads nothing.

        Raises:
            KVTierError: a figure is out of range.
        """
        if self.name not in TIER_NAMES:
            raise KVTierError(f"{self.name!r} is no tier; choose of {', '.join(TIER_NAMES)}")
        for words, value in (("size in bytes", self.capacity_bytes), ("bytes per second", self.bytes_per_s)):
            if not (math.isfinite(value) and value > 0):
                raise KVTierError(f"{self.name}: the {words} must be a number above 0, not {value:g}")
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise KVTierError(f"{self.name}: the latency must be 0 or more seconds, not {self.latency_s:g}")

    def capacity_tokens(self, kv_bytes_per_token: float) -> int:
        """Return how many tokens of KV it holds."""
        return int(self.capacity_bytes // kv_bytes_per_token)

    def t_load(self, tokens: float, kv_bytes_per_token: float) -> float:
        """Return T_load(l) = latency + l · bytes per token / bandwidth in seconds, 0 for no tokens."""
        return load_seconds(self.latency_s, kv_bytes_per_token / self.bytes_per_s, tokens)

    @property
    def text(self) -> str:
        """Return the text from which ``tier_from_text`` reads this tier."""
        return f"{self.name}:{self.capacity_bytes!r}:{self.bytes_per_s!r}:{self.latency_s!r}"


def t_load(tokens: Mapping[str, int], kv_bytes_per_token: float, speeds: Mapping[str, TierSpeed] = SPEEDS) -> float:
    """Return the seconds to load tokens from the tiers that have them, one tier after the other."""
    seconds = 0.0
    for name, count in tokens.items():
        speed = speeds[name]
        seconds += load_seconds(speed.latency_s, kv_bytes_per_token / speed.bytes_per_s, count)
    return seconds


def check_order(names: Sequence[KVTierName]) -> None:
    """Refuse tiers that are there twice, or not from the fastest to the slowest.

    Raises:
        KVTierError: they are.
    """
    places = [TIER_NAMES.index(name) for name in names]
    if places != sorted(set(places)):
        raise KVTierError(f"give each of {', '.join(TIER_NAMES)} at most once, in this order")


def tier_from_text(text: str) -> KVTier:
    """Return the tier that ``NAME:SIZE[:BYTES_PER_S[:LATENCY_S]]`` describes, such as ``cpu:200Gi:25e9``.

    The size is in bytes, or has a suffix Mi, Gi or Ti.

    Raises:
        KVTierError: the text is not of this form, or a figure is out of range.
    """
    name, *figures = text.split(":")
    if name not in TIER_NAMES or not 1 <= len(figures) <= 3:
        raise KVTierError(f"{text!r} is not NAME:SIZE[:BYTES_PER_S[:LATENCY_S]] with a name of {', '.join(TIER_NAMES)}")
    try:
        size, unit = (figures[0][:-2], UNITS[figures[0][-2:]]) if figures[0][-2:] in UNITS else (figures[0], 1.0)
        capacity, rest = float(size) * unit, [float(figure) for figure in figures[1:]]
    except ValueError:
        raise KVTierError(
            f"{text!r}: the size must be a number of bytes or end in {', '.join(UNITS)}, bandwidth and latency numbers"
        ) from None
    return KVTier(name, capacity, rest[0] if rest else BYTES_PER_S[name], rest[1] if len(rest) > 1 else 0.0)
