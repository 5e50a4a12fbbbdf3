"""The base of all sections of router.json: camelCase on the wire, unknown fields refused, frozen once read."""

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel


class ConfigError(ValueError):
    """Report a configuration that cannot be used; the message names the field and the fix."""


class Section(BaseModel):
    """A part of router.json; every field but the few that only the service knows has a default."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, alias_generator=to_camel)


def first_error(error: ValidationError) -> str:
    """Return where the first error is and what it says, and how many more there are; no value is shown."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "file"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where}: {first['msg']}{more}"
