"""The base of all API types, and rules that the API server checks by CEL and the operator checks again."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition over several fields; the message names the field and the fix.

    ``cel`` is None where the schema itself already refuses the case, as lists keyed by name do.
    ``holds`` is the same condition in Python, for objects that were stored before the rule was. It is
    None for rules over the old and the new object (``oldSelf``), which only the API server can see.
    ``culprit`` returns the value that broke it as text, where a message that names the field does not say which one,
    and what would not; ``entry`` returns its place, where the field is a list. ``cel_culprit`` is the
    same for the API server: a format and a list of numbers in CEL, which it evaluates only where the rule is broken.
    """

    cel: str | None
    message: str
    holds: Callable[[Any], bool] | None
    culprit: Callable[[Any], str] | None = None
    entry: Callable[[Any], int] | None = None
    cel_culprit: tuple[str, str] | None = None

    @property
    def validation(self) -> dict[str, str]:
        """Return the rule as an entry of x-kubernetes-validations."""
        found = {"rule": self.cel or "", "message": self.message}
        if self.cel_culprit is not None:
            text, numbers = self.cel_culprit
            plain = self.message.replace("\\", "\\\\").replace("'", "\\'").replace("%", "%%")
            # Not string() and +: the API server takes a number's text for unbounded, and refuses what that costs.
            found["messageExpression"] = f"'{plain} (got {text})'.format({numbers})"
        return found

    def broken_by(self, value: object) -> str:
        """Return the message for a value that breaks the rule, with the entry and the culprit."""
        field, _, rest = self.message.partition(": ")
        entry = f"[{self.entry(value)}]" if self.entry is not None else ""
        got = f" (got {self.culprit(value)})" if self.culprit is not None else ""
        return f"{field}{entry}: {rest}{got}"


class ApiModel(BaseModel):
    """A frozen part of an API object: camelCase on the wire, unknown fields refused, rules checked last."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        defer_build=True,  # most commands validate few of the types
    )

    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _check_rules(self) -> "ApiModel":
        for rule in self.rules:
            if rule.holds is not None and not rule.holds(self):
                raise PydanticCustomError("rule", "{message}", {"message": rule.broken_by(self)})
        return self


def rule_at(message: str, at: str) -> str:
    """Return a rule's message with the place where it was broken: a rule of a type that several fields share."""
    field, _, rest = message.partition(": ")
    shared = re.sub(r"\[\d+\]", "", at)
    if not shared or field.startswith(f"{shared}."):
        return f"{at}{field[len(shared) :]}: {rest}"
    return f"{at}: {rest}"
