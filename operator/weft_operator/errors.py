"""Errors that say what to do next, and the answers of the API server as errors of our own.

OperatorError
├── StalledError      nothing helps but a change of the spec or the cluster; reconciled again at the resync
├── WaitingError      will pass by itself; reconciled again after ``retry_after`` seconds
├── NotLeaderError    another replica leads: nothing may be written
├── StaleListError    a pass would act on what was listed for many services: it must observe for itself first
└── ApiError          an answer of the API server (or none)
    ├── NotFoundError     404
    ├── ConflictError     409: somebody was faster, or the object's uid is another one
    ├── ForbiddenError    401 and 403: rights are missing
    ├── InvalidError      400 and 422: the object breaks a rule of the API server
    └── TransientError    410 (a listing that took too long), 429, 5xx, no connection: retried with growing pauses
"""

from dataclasses import dataclass

REMEDY = (
    "apply Weft's chart again (helm upgrade), so that the operator's role is that of its version, or add the right "
    "to its role"
)


BY_VALUE = {
    "scheduling.volcano.sh": "operator.gangSchedulers={volcano}",
    "scheduling.run.ai": "operator.gangSchedulers={kai}",
    "scheduling.x-k8s.io": "operator.gangSchedulers={coscheduling}",
    "resource.nvidia.com": "operator.computeDomains=true",
}
"""API groups of other projects: which value of the chart gives the rights to what Weft makes in them."""


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """A right that a role may give; ``group`` is "" for the core API, ``namespace`` is "" for all of them."""

    verb: str
    resource: str
    group: str
    namespace: str

    def __str__(self) -> str:
        resource, slash, part = self.resource.partition("/")
        named = f"{resource}.{self.group}{slash}{part}" if self.group else self.resource
        return f"{self.verb} {named} {f'in namespace {self.namespace}' if self.namespace else 'in all namespaces'}"

    def lack(self) -> str:
        """Return what to tell of it where it is missing: verb, resource, namespace and the remedy."""
        value = BY_VALUE.get(self.group)
        remedy = f"apply Weft's chart again with {value} (helm upgrade --set '{value}')" if value else REMEDY
        return f"the operator may not {self}; {remedy}"


class OperatorError(Exception):
    """The root of all errors of the operator."""


class StalledError(OperatorError):
    """Nothing helps but a change of the spec or the cluster; ``reason`` is one of ``weft_operator.status.reasons``."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class WaitingError(OperatorError):
    """Something will pass by itself; look again after ``retry_after`` seconds."""

    def __init__(self, reason: str, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class NotLeaderError(OperatorError):
    """This replica does not lead, or not any more; whoever does goes on from what the cluster holds."""


class StaleListError(OperatorError):
    """A pass that was lent what was listed for many found something to do: it must look for itself before it acts."""


class ApiError(OperatorError):
    """The API server's answer to one request; ``status`` is the HTTP status, 0 without an answer."""

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class NotFoundError(ApiError):
    """404: the object or its kind is not there."""


class ConflictError(ApiError):
    """409: somebody was faster, or a precondition does not hold."""


class ForbiddenError(ApiError):
    """401 or 403: refused; ``right`` is the right that is missing, None where it was refused for another reason."""

    def __init__(
        self, message: str, *, status: int = 0, retry_after: float | None = None, right: Right | None = None
    ) -> None:
        super().__init__(message, status=status, retry_after=retry_after)
        self.right = right


class InvalidError(ApiError):
    """400 or 422: the object breaks a rule of the API server."""


class TransientError(ApiError):
    """410, 429, 5xx or no connection: worth another attempt; none of them says that an object is not there."""


def refusal_of(error: StalledError | ApiError) -> tuple[str, str]:
    """Return the reason and the words for an object that was refused."""
    if isinstance(error, StalledError):
        return error.reason, str(error)
    if isinstance(error, ForbiddenError) and error.right is not None:
        return "RightMissing", error.right.lack()
    return "ApplyFailed", str(error)
