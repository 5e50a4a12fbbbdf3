"""Parse a stored service object into the API types."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from weft_operator.api.base import rule_at
from weft_operator.api.service import GROUP, KIND, VERSION, DisaggInferenceService
from weft_operator.errors import StalledError


def parse_service(manifest: Mapping[str, Any]) -> DisaggInferenceService:
    """Return the service of a stored object.

    Raises:
        StalledError: InvalidSpec, with the field: the validation rules may be newer than the stored object.
    """
    body = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": manifest["metadata"],
        "spec": manifest.get("spec"),
    }
    try:
        # The CRD may be newer and have more fields, and defaults for them.
        return DisaggInferenceService.model_validate(body, extra="ignore")
    except ValidationError as error:
        where, message = first_error(error)
        first = error.errors(include_url=False)[0]
        if first["type"] == "rule":
            at = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
            raise StalledError("InvalidSpec", rule_at(message, at.removeprefix("."))) from error
        raise StalledError("InvalidSpec", f"{where}: {message}") from error


def first_error(error: ValidationError) -> tuple[str, str]:
    """Return the field and the message of the first error."""
    first = error.errors(include_url=False, include_input=False)[0]
    return ".".join(str(part) for part in first["loc"]), first["msg"]
