"""Types of single fields: durations, quantities and names, each with the pattern the API server checks."""

import re
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    InstanceOf,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)

from weft_core.parallelism import Parallelism, degree_to_json, parse_degree

DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"

Duration = Annotated[str, StringConstraints(pattern=DURATION_PATTERN, max_length=16)]
"""A length of time as Kubernetes and Go write it: 50ms, 5s, 1m30s, 2h."""

Text = Annotated[str, StringConstraints(max_length=4096)]
"""Words for people, as a status holds them."""

ShortText = Annotated[str, StringConstraints(max_length=253)]
"""A word or a name that a status holds."""

DnsLabel = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)]
"""A name of a Kubernetes object or of a part of one."""

ObjectName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", min_length=1, max_length=253)
]
"""The name of an object in the service's own namespace."""

PullSecrets = Annotated[list[ObjectName], Field(max_length=8)]
"""Secrets of type kubernetes.io/dockerconfigjson in the service's own namespace."""

ResourceName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=128)
]
"""An extended resource as a device plug-in advertises it: nvidia.com/gpu, rdma/ib."""

LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=317
    ),
]
"""The key of a label: topology.kubernetes.io/rack."""

QUANTITY_PATTERN = r"^([0-9]+|[0-9]*\.[0-9]+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"


def _quantity(value: int | str) -> int | str:
    too_large = isinstance(value, int) and value >= 2**63  # to the API server this is no whole number
    if too_large or re.fullmatch(QUANTITY_PATTERN.strip("^$"), str(value)) is None:
        raise ValueError(f"{value!r} is not a quantity; write 500m, 2 or 16Gi")
    return value


Quantity = Annotated[
    int | str,
    AfterValidator(_quantity),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "minimum": 0,
            "pattern": QUANTITY_PATTERN,
            "maxLength": 32,
        }
    ),
]
"""An amount of a resource: 500m, 2, 16Gi."""

_N = "[1-9][0-9]{0,3}"
DEGREE_PATTERN = f"^({_N}|tp{_N}(pp{_N})?(dp{_N})?(ep)?|pp{_N}(dp{_N})?(ep)?|dp{_N}(ep)?|ep)$"


def _read_degree(value: object) -> object:
    return parse_degree(value) if isinstance(value, str) else value


AnyDegree = Annotated[
    Annotated[int, Field(ge=1, le=4096)] | InstanceOf[Parallelism],
    BeforeValidator(_read_degree),
    PlainSerializer(degree_to_json),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "minimum": 1,
            "maximum": 4096,
            "pattern": DEGREE_PATTERN,
            "maxLength": 20,
        }
    ),
]
"""How a worker splits the model: a number of GPUs that share layers by tensors, or its parts, such as dp16ep."""

Role = Literal["prefill", "decode"]
WorkerRole = Literal["prefill", "decode", "both"]
Fraction = Annotated[float, Field(gt=0, le=1)]
