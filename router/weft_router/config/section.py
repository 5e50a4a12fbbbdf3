"""The base of all sections of router.json: camelCase on the wire, unknown fields refused, frozen once read."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, PlainSerializer, ValidationError
from pydantic.alias_generators import to_camel

from weft_core.parallelism import Parallelism, degree_to_json, parse_degree


class ConfigError(ValueError):
    """Report a configuration that cannot be used; the message names the field and the fix."""


def _read_degree(value: object) -> object:
    return parse_degree(value) if isinstance(value, str) else value


WorkerDegree = Annotated[
    Annotated[int, Field(ge=1)] | InstanceOf[Parallelism],
    BeforeValidator(_read_degree),
    PlainSerializer(degree_to_json),
]
"""How a worker splits the model: a number of GPUs, or text such as tp4pp2 or dp16ep."""


class Section(BaseModel):
    """A part of router.json; every field but the few that only the service knows has a default."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, alias_generator=to_camel)


def first_error(error: ValidationError) -> str:
    """Return where the first error is and what it says, and how many more there are; no value is shown."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "file"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where}: {first['msg']}{more}"
