"""Read single fields of a stored plan."""

from weft_core.json_fields import FieldReader


class PlanError(ValueError):
    """Report a plan that cannot be read; the message names the field and the fix."""


FIELDS = FieldReader(PlanError)
