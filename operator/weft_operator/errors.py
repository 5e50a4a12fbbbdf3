"""The operator's errors, which say how a pass goes on, and the API server's errors.

OperatorError
├── StalledError      the spec or the cluster must change; reconciled again at the resync
├── WaitingError      ends by itself; reconciled again after ``retry_after`` seconds
├── NotLeaderError    another replica leads: nothing may be written
├── StaleListError    a pass on a list of many services has something to write: it must observe for itself first
└── ApiError          an error response of the API server, or none
    ├── NotFoundError     404
    ├── ConflictError     409: changed concurrently, or another uid
    ├── ForbiddenError    401 and 403: rights are missing
    ├── InvalidError      400 and 422: the object breaks a rule of the API server
    └── TransientError    410 (a list that took too long), 429, 5xx, no connection: retried with backoff
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
    "gateway.networking.k8s.io": "operator.gatewayApi=true",
    "inference.networking.k8s.io": "operator.gatewayApi=true",
    "security.istio.io": "operator.peerAuthentications=true",
}
"""The chart's value that gives the rights in an API group of another project."""


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """An RBAC permission; ``group`` is "" for the core API, ``namespace`` is "" for all namespaces."""

    verb: str
    resource: str
    group: str
    namespace: str

    def __str__(self) -> str:
        resource, slash, part = self.resource.partition("/")
        named = f"{resource}.{self.group}{slash}{part}" if self.group else self.resource
        return f"{self.verb} {named} {f'in namespace {self.namespace}' if self.namespace else 'in all namespaces'}"

    def lack(self) -> str:
        """Return the message where it is missing: verb, resource, namespace and the remedy."""
        value = BY_VALUE.get(self.group)
        remedy = f"apply Weft's chart again with {value} (helm upgrade --set '{value}')" if value else REMEDY
        return f"the operator may not {self}; {remedy}"


class OperatorError(Exception):
    """The root of all errors of the operator."""


class StalledError(OperatorError):
    """The spec or the cluster must change; ``reason`` is one of ``weft_operator.status.reasons``."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class WaitingError(OperatorError):
    """Something ends by itself; reconcile again after ``retry_after`` seconds."""

    def __init__(self, reason: str, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class NotLeaderError(OperatorError):
    """This replica does not lead, or not any more."""


class StaleListError(OperatorError):
    """A pass that reads from a list of many services has something to write: it must observe for itself first."""


class ApiError(OperatorError):
    """An error response of the API server; ``status`` is the HTTP status, 0 without a response."""

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class NotFoundError(ApiError):
    """404: the object or its kind does not exist."""


class ConflictError(ApiError):
    """409: a concurrent change, or a precondition failed."""


class ForbiddenError(ApiError):
    """401 or 403; ``right`` is the missing right, None where another reason was given."""

    def __init__(
        self, message: str, *, status: int = 0, retry_after: float | None = None, right: Right | None = None
    ) -> None:
        super().__init__(message, status=status, retry_after=retry_after)
        self.right = right


class InvalidError(ApiError):
    """400 or 422: the object breaks a rule of the API server."""


class TransientError(ApiError):
    """410, 429, 5xx or no connection: to be retried; none of them means that an object does not exist."""


def refusal_of(error: StalledError | ApiError) -> tuple[str, str]:
    """Return the reason and message for a refused object."""
    if isinstance(error, StalledError):
        return error.reason, str(error)
    if isinstance(error, ForbiddenError) and error.right is not None:
        return "RightMissing", error.right.lack()
    return "ApplyFailed", str(error)
