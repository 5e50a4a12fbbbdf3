"""References to Secrets in the service's namespace."""

from typing import Annotated

from pydantic import StringConstraints

from weft_operator.api.base import ApiModel
from weft_operator.api.fields import ObjectName


class SecretKey(ApiModel):
    """One key of a Secret in the service's namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", min_length=1, max_length=253)]
    """Key in the Secret."""


class SecretName(ApiModel):
    """A Secret in the service's namespace."""

    name: ObjectName
    """Name of the Secret."""
