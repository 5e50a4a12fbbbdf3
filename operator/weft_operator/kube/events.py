"""An Event to post: the same one has the same name, so it is posted once."""

import hashlib
from dataclasses import dataclass
from typing import Literal

MAX_MESSAGE = 1000
"""The API server refuses longer messages (1,024 bytes)."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a service; ``origin`` tells two facts with the same words apart."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    origin: str

    def name(self, service: str, uid: str) -> str:
        """Return the name of the fact's Event: the same fact has the same name, also after a restart."""
        text = "\0".join((uid, self.reason, self.message, self.origin))
        return f"{service}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


OVERLAP_FIX = (
    "give one of them operator.instance in the chart's values and its services the label weft.dev/operator, or let "
    "operator.watchNamespaces of both name different namespaces"
)
"""What to do about two operators that look after the same services."""
