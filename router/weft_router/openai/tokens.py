"""Estimate token counts from characters by a ratio learned from the engine's own usage figures."""

from dataclasses import dataclass
from math import nan
from typing import Final

START_CHARS_PER_TOKEN: Final = 4.0
LEAST: Final = 0.5
MOST: Final = 16.0
_START_WEIGHT: Final = 1_000.0
_RECENT: Final = 0.95
_HALF: Final = 0.5
_MEMORY: Final = 0.99
"""Each observation keeps 99 % of the past: about the last hundred requests count."""


@dataclass(slots=True)
class CharsPerToken:
    """A running ratio of characters to tokens, weighted by length."""

    chars: float = START_CHARS_PER_TOKEN * _START_WEIGHT
    tokens: float = _START_WEIGHT

    @property
    def ratio(self) -> float:
        """Return characters per token, kept between 0.5 and 16 whatever was observed."""
        return min(MOST, max(LEAST, self.chars / self.tokens))

    def learn(self, chars: int, tokens: int) -> None:
        """Take one exact observation into account."""
        if chars > 0 and tokens > 0:
            self.chars = self.chars * _MEMORY + chars
            self.tokens = self.tokens * _MEMORY + tokens

    def estimate(self, chars: int) -> int:
        """Return the expected number of tokens, at least 1."""
        ratio = self.chars / self.tokens
        if not LEAST <= ratio <= MOST:
            ratio = self.ratio
        return nearest(chars / ratio) or 1


@dataclass(slots=True)
class AnswerTokens:
    """A moving mean of the tokens of answers; NaN before the first."""

    mean: float = nan

    def learn(self, tokens: int) -> None:
        """Take one answer into account."""
        known = self.mean == self.mean
        self.mean = _RECENT * self.mean + (1 - _RECENT) * tokens if known else float(tokens)


def nearest(value: float) -> int:
    """Return what ``round`` does of a value that is not negative, for a tenth of its cost where it is compiled."""
    whole = int(value)
    rest = value - whole
    return whole + 1 if rest > _HALF or (rest == _HALF and whole % 2) else whole
