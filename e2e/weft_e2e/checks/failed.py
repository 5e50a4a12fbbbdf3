"""The one error of all checks."""


class CheckFailed(AssertionError):  # noqa: N818 - an assertion, as test runners show them
    """Say what was expected and what was found."""
