"""Types of single fields: durations, quantities and names, each with the pattern the API server checks."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, WithJsonSchema

Duration = Annotated[str, StringConstraints(pattern=r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$", min_length=2, max_length=16)]
"""A length of time as Kubernetes and Go write it: 50ms, 5s, 1m30s, 2h."""

DnsLabel = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)]
"""A name of a Kubernetes object or of a part of one."""

ObjectName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", min_length=1, max_length=253)
]
"""The name of an object in the service's own namespace."""

ResourceName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=128)
]
"""An extended resource as a device plug-in advertises it: nvidia.com/gpu, rdma/ib."""

QUANTITY_PATTERN = r"^([0-9]+|[0-9]*\.[0-9]+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"

Quantity = Annotated[
    int | str,
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": QUANTITY_PATTERN,
            "maxLength": 32,
        }
    ),
]
"""An amount of a resource: 500m, 2, 16Gi."""

Role = Literal["prefill", "decode"]
Fraction = Annotated[float, Field(gt=0, le=1)]
