"""What can be wrong with an engine, or with a shape, that is to be timed."""


class EngineError(Exception):
    """Report an engine that cannot be profiled; the message says what it answered and what to do."""


class NotMeasurable(EngineError):  # noqa: N818 - says what became of a cell, not that something broke
    """Report a cell this engine cannot show, with the reason; the run goes on without it."""


class TooSlow(NotMeasurable):
    """Report a request that was not answered within the time that is allowed to each."""
