"""What the protocols refuse in the same words."""

from dataclasses import replace

from weft_mock.engine import Engine
from weft_mock.errors import ApiError
from weft_mock.requests import Generation


def violation(engine: Engine, reason: str, message: str, *, param: str | None = None) -> ApiError:
    """Count a violation and return the error that answers it."""
    engine.ledger.violations[reason] += 1
    return ApiError(400, message, param=param)


def one_answer(engine: Engine, generation: Generation) -> None:
    """Refuse several answers of one meeting.

    Raises:
        ApiError: there is more than one.
    """
    if generation.n * len(generation.prompts) != 1:
        raise violation(engine, "several_answers", "n: one meeting serves one answer; send n = 1 and one prompt")


def one_token(generation: Generation) -> Generation:
    """Return a generation that ends after its first token, whatever was asked for."""
    return replace(generation, limits=replace(generation.limits, max_tokens=1, min_tokens=0))
