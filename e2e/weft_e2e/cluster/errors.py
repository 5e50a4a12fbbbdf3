"""Errors of the local cluster.

ClusterError                a message for the user: what is wrong and what to do about it
├── Refused                 nothing was started: the machine or the request does not allow it
├── SetupError              a tool could not be installed or built
├── NotRunning              the named cluster (or node) is not there
├── StartError              something was started and did not become ready in time
└── CommandError            a program that was run for the user failed; its words are in the message
"""


class ClusterError(RuntimeError):
    """Base of everything this package raises on purpose."""


class Refused(ClusterError):  # noqa: N818  # it names what happened to the request
    """Nothing was started: the machine or the request does not allow it."""


class SetupError(ClusterError):
    """A tool could not be installed or built."""


class NotRunning(ClusterError):  # noqa: N818
    """The named cluster (or node) is not there."""


class StartError(ClusterError):
    """Something was started and did not become ready in time."""


class CommandError(ClusterError):
    """A program that was run for the user failed."""
