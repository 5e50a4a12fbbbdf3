"""Values that options take: KV tiers, and numbers within what makes sense, so that a slip of the unit is refused."""

import math

import click

from weft_core.kv_tiers import KVTier, KVTierError, KVTierName, check_order, tier_from_text


class Finite(click.FloatRange):
    """A number within a range; click's own range lets NaN pass."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail with the range."""
        number = super().convert(value, param, ctx)  # type: ignore[arg-type]
        if math.isnan(number):
            self.fail(f"{value} is no number; it must be in the range {self._describe_range()}.", param, ctx)
        return number


RATE = Finite(min=0, max=100_000, min_open=True)
"""Sessions a second, as in ``spec.workload.arrivalRate``."""
MOST_TOKENS = 10_000_000
MEAN_ROUNDS = Finite(min=1, max=10_000)
MEAN_TOKENS = Finite(min=0, max=MOST_TOKENS, min_open=True)
NOISE = Finite(min=0, max=10)
LINK_RATE = Finite(min=1e6, max=1e14)
"""Bytes per second: a rate in gigabytes is below, one in bits for a whole rack above."""


class TierType(click.ParamType[KVTier]):
    """A tier of KV memory, as ``tier_from_text`` reads it."""

    name = "tier"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> KVTier:
        """Return the tier, or fail with what its text must be."""
        if isinstance(value, KVTier):
            return value
        try:
            return tier_from_text(str(value))
        except KVTierError as error:
            self.fail(str(error), param, ctx)


TIER = TierType()


TierSizes = tuple[tuple[KVTierName, float], ...]
"""Tiers of a worker by name, and their bytes."""


class TierSizesType(click.ParamType[TierSizes]):
    """Tiers of a worker, fastest first: ``NAME:SIZE``, by comma."""

    name = "tiers"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> TierSizes:
        """Return the sizes, or fail with what the text must be."""
        if isinstance(value, tuple):
            return value
        texts = str(value).split(",")
        if any(text.count(":") != 1 for text in texts):
            self.fail(f"{value} is not NAME:SIZE, by comma, such as cpu:200Gi,disk:2Ti", param, ctx)
        try:
            tiers = [tier_from_text(text) for text in texts]
            check_order([tier.name for tier in tiers])
        except KVTierError as error:
            self.fail(str(error), param, ctx)
        return tuple((tier.name, tier.capacity_bytes) for tier in tiers)


TIER_SIZES = TierSizesType()
