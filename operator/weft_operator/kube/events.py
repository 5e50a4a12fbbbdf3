"""Events as data; ``weft_operator.status.events`` decides which are posted, ``apply`` posts them."""

import hashlib
from dataclasses import dataclass
from typing import Literal

MAX_MESSAGE = 1000
"""The API server refuses longer messages (1,024 bytes)."""


@dataclass(frozen=True, slots=True)
class Event:
    """An Event about a service; ``origin`` distinguishes two Events with the same message."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    origin: str

    def name(self, service: str, uid: str) -> str:
        """Return the name of the object: the same Event has the same name after a restart, so it is posted once."""
        text = "\0".join((uid, self.reason, self.message, self.origin))
        return f"{service}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


OVERLAP_FIX = (
    "give one of them operator.instance in the chart's values and its services the label weft.dev/operator, or let "
    "operator.watchNamespaces of both name different namespaces"
)
"""The remedy for two operators that reconcile the same services."""
