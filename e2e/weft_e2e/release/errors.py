"""Errors of a release."""


class ReleaseError(Exception):
    """A release that cannot be made as the repository is; the message says what to change."""
