"""The error of everything that reads planning requests; apart, so that the operator need not load the planner."""


class RequestError(ValueError):
    """Report a request that cannot be read; one line that names the field."""
