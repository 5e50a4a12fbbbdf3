"""Count the seconds that tiers save: what the engine loaded of a round's history did not have to be computed."""

from collections.abc import Callable, Mapping

from weft_core.kv_tiers import TIER_NAMES, TierSpeed, t_load
from weft_router.config import Settings
from weft_router.sessions.session import PrefixMatch
from weft_router.telemetry.metrics import Metrics


def saved_seconds(
    below: Mapping[str, int],
    *,
    gpu: int,
    cached: int,
    computed_s: Callable[[int, int], float],
    loaded_s: Callable[[str, int], float],
) -> dict[str, float]:
    """Return max(0, T_pre - T_load) in seconds of the tokens that came from each tier, the fastest tier first.

    Args:
        below: tokens of the history in each tier, by events.
        gpu: tokens of it in GPU memory.
        cached: tokens of the prompt that the engine says it did not compute; a load that failed is not among them.
        computed_s: T_pre of some tokens of history and of new ones.
        loaded_s: T_load of a tier's tokens.
    """
    found: dict[str, float] = {}
    before = gpu
    for tier in TIER_NAMES:
        tokens = min(below.get(tier, 0), cached - before)
        if tokens <= 0:
            continue
        found[tier] = max(0.0, computed_s(before, tokens) - loaded_s(tier, tokens))
        before += tokens
    return found


class TierSavings:
    """The seconds saved of one decode worker, by tier."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._profile, self._degree = settings.profile, settings.degree
        self._speeds: Mapping[str, TierSpeed] = settings.config.engine.tier_speeds()
        self._saved = metrics.kv_saved

    def count(self, match: PrefixMatch, cached: int) -> None:
        """Count those of a round that its own worker prefilled, of whose prompt so many tokens were cached."""
        if not match.below:
            return
        gpu = match.task.history - sum(match.below.values())
        saved = saved_seconds(match.below, gpu=gpu, cached=cached, computed_s=self._computed_s, loaded_s=self._loaded_s)
        for tier, seconds in saved.items():
            self._saved.labels(tier).value += seconds

    def _computed_s(self, history: int, tokens: int) -> float:
        return self._profile.t_pre(history=history, increment=tokens, degree=self._degree)

    def _loaded_s(self, tier: str, tokens: int) -> float:
        return t_load({tier: tokens}, self._profile.kv_bytes_per_token, self._speeds)
