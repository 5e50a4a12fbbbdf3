"""One manifest that ``kubectl apply`` must refuse, with the words that tell the user what is wrong.

Every case is one change of a valid manifest. ``rule`` is the whole message of a rule over several fields, which
the operator's own check gives in the same words; ``words`` are parts of the API server's message elsewhere.
"""

import re
from dataclasses import dataclass
from typing import Any

from weft_operator.api.engine_flags import MANAGED, EngineType
from weft_operator.api.objects import Manifest
from weft_operator_tests.valid import changed, service


@dataclass(frozen=True)
class Case:
    """One invalid manifest."""

    name: str
    body: Manifest
    rule: str = ""
    words: tuple[str, ...] = ()

    @property
    def expected(self) -> tuple[str, ...]:
        """Return what the API server's message must hold."""
        return (self.rule,) if self.rule else self.words


def one_change(name: str, path: str, value: Any, *, rule: str = "", words: tuple[str, ...] = ()) -> Case:
    """Return a service with one field set to what is refused."""
    return Case(name, changed(service(), path, value), rule, words)


_FIELDS = "from other fields, such as memoryFraction, maxNumSeqs, maxNumBatchedTokens and quantization beside args"


def plain_rule(message: str) -> str:
    """Return a rule's message as the API server has it: without the entry of a list and the value that broke it."""
    field, _, rest = message.partition(": ")
    path, text = re.sub(r"\[[0-9]+\]$", "", field), rest.partition(" (got ")[0]
    return f"{path}: {text}"


def managed_flags_of_role(role: str) -> str:
    """Return what is said of an argument of one role that the operator sets itself."""
    return (
        f"spec.engine.{role}.args: the operator sets one of these flags (the API reference lists them at "
        f"spec.engine.args) {_FIELDS}; remove it here, and write others in full"
    )


def managed_flags(engine: EngineType) -> str:
    """Return what is said of an argument that the operator sets itself."""
    flags = MANAGED[engine]
    short = f"({', '.join('-' + flag for flag in flags.short)}) " if flags.short else ""
    return (
        f"spec.engine.args: the operator sets {', '.join('--' + flag for flag in flags.long)} {short}{_FIELDS}; "
        "remove them here, and write others in full"
    )
