"""Learn when sessions return, by class and awaited tool, and say what keeping their KV readable is worth."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from weft_core.cost import CostProfileError
from weft_core.heartbeat import WorkerRecord
from weft_core.kv_tiers import t_load
from weft_core.policies.retention import BUCKETS, kv_value
from weft_router.config import Settings
from weft_router.openai.body import Json

MOST_KINDS: Final = 256
"""Classes and tools that are learned apart; sessions that wait for further tools count with those that call none."""
LONGEST_NAME: Final = 64
"""Characters of a tool's name: models make names up."""

if TYPE_CHECKING:
    ReturnCounts = array[float]
else:  # Python 3.11's array takes no parameter at run time
    ReturnCounts = array
"""The counts of ``weft_core.policies.retention``, which sessions alike share."""


class ReturnTimes:
    """Counts of gaps between rounds, for each class and tool."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], ReturnCounts] = {}

    def counts(self, class_: str, tool: str) -> ReturnCounts:
        """Return the counts of gaps of sessions of a class that wait for a tool, "" for the client's next message."""
        found = self._counts.get((class_, tool))
        if found is None:
            if tool and len(self._counts) >= MOST_KINDS:
                return self.counts(class_, "")
            found = self._counts[class_, tool] = array("d", bytes(8 * (BUCKETS + 1)))
        return found


def awaited_tool(calls: Mapping[int, Json]) -> str:
    """Return the name of the first tool that an answer calls, "" where it calls none."""
    for call in calls.values():
        function = call.get("function")
        name = function.get("name") if isinstance(function, dict) else call.get("name")
        return name[:LONGEST_NAME] if isinstance(name, str) else ""
    return ""


def handle_value(
    session: str, tokens: int, rate: float, *, settings: Settings, readers: Callable[[], Sequence[WorkerRecord]],
    in_tier: Callable[[str], tuple[str, int]],
) -> float:  # fmt: skip
    """Return what a handle for so many tokens is worth, of a session that returns at this rate.

    It saves a prefill worker the history, or the decode worker to load what a tier has of it and to compute the rest,
    whichever takes less time; less the time to read that. Without a profile of that the rate alone counts. ``in_tier``
    returns a tier and how many tokens of the session it has.
    """
    for reader in readers():
        profile = settings.profile_of(reader.pool)
        try:
            lost_s = profile.t_pre(history=0, increment=tokens, degree=reader.degree)
            kept_s = profile.t_kv(tokens, source=settings.degree, destination=reader.degree)
            tier, copied = in_tier(session)
            copied = min(copied, tokens)
            if copied:
                load_s = t_load({tier: copied}, profile.kv_bytes_per_token, settings.config.engine.tier_speeds())
                rest = tokens - copied
                rest_s = profile.t_pre(history=copied, increment=rest, degree=reader.degree) if rest else 0.0
                lost_s = min(lost_s, load_s + rest_s)
        except CostProfileError:
            break
        return kv_value(rate, kept_s, lost_s, float(tokens))
    return rate
