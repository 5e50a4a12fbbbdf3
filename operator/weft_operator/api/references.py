"""References to Secrets, ConfigMaps and volumes in the service's namespace."""

import re
from typing import Annotated

from pydantic import StringConstraints

from weft_operator.api.base import ApiModel
from weft_operator.api.fields import ObjectName

Folder = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._/-]+$", max_length=512)]
WITHIN_CLUSTER = r"^http://[a-z0-9-]+[.][a-z0-9-]+[.]svc([.]cluster[.]local)?(:[0-9]+)?(/|$)"
"""URLs of Services; of a name with fewer parts search domains decide where it is."""


def stays_secret(url: str) -> bool:
    """Return whether what a Secret holds may be sent to a URL: encrypted, or within the cluster."""
    return url.startswith("https://") or re.match(WITHIN_CLUSTER, url) is not None


class SecretKey(ApiModel):
    """One key of a Secret in the service's namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", min_length=1, max_length=253)]
    """Key in the Secret."""


class ConfigMapKey(ApiModel):
    """One key of a ConfigMap in the service's namespace."""

    name: ObjectName
    """Name of the ConfigMap."""
    key: Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", min_length=1, max_length=253)]
    """Key in its data."""


class SecretName(ApiModel):
    """A Secret in the service's namespace."""

    name: ObjectName
    """Name of the Secret."""


class Pvc(ApiModel):
    """A folder of a volume that every worker mounts read-only."""

    claim_name: ObjectName
    """PersistentVolumeClaim in the service's namespace, ReadOnlyMany or ReadWriteMany."""
    path: Folder = "."
    """The folder."""
