"""Rules over engine settings that both roles share or one role has of its own; each names the field that breaks it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from weft_operator.api.base import Rule
from weft_operator.api.engine_flags import (
    EARLY,
    FROM_A_VARIABLE,
    MANAGED,
    NAME,
    EngineType,
    is_managed,
    managed_patterns,
)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where settings are: in spec.engine, or in what it has for one role."""

    role: str = ""

    @property
    def path(self) -> str:
        return f"spec.engine.{self.role}" if self.role else "spec.engine"

    @property
    def cel(self) -> str:
        return f"self.{self.role}" if self.role else "self"

    @property
    def absent(self) -> str:
        """Return the beginning of a CEL condition that holds where there are no such settings."""
        return f"!has(self.{self.role}) || " if self.role else ""

    def settings(self, engine: Any) -> Any:
        """Return the settings here, None where there are none."""
        return getattr(engine, self.role) if self.role else engine

    def args(self, engine: Any) -> tuple[str, ...]:
        settings = self.settings(engine)
        return () if settings is None else tuple(settings.args)


_SHARED = _Place()
_ROLES = (_Place("prefill"), _Place("decode"))
_PLACES = (_SHARED, *_ROLES)

_FIELDS = "from other fields, such as memoryFraction, maxNumSeqs, maxNumBatchedTokens and quantization beside args"


def _no_argument(place: _Place, cel: str, message: str, refused: Callable[[Any, str], bool]) -> Rule:
    """Return the rule that none of the arguments of a place is a refused one."""

    def first(engine: Any) -> int:
        return next(number for number, arg in enumerate(place.args(engine)) if refused(engine, arg))

    return Rule(
        f"{place.absent}{cel}",
        f"{place.path}.args: {message}",
        lambda engine: not any(refused(engine, arg) for arg in place.args(engine)),
        culprit=lambda engine: repr(place.args(engine)[first(engine)]),
        entry=first,
    )


def _unmanaged(engine: EngineType, place: _Place) -> str:
    """Return the CEL condition that no argument is managed; of what ``?`` chooses from, only the dearer part counts."""
    early, late = (f"!a.find('{NAME}').matches('{pattern}')" for pattern in managed_patterns(engine))
    return f"{place.cel}.args.all(a, a.matches('{EARLY}') ? {early} : {late})"


def _managed_rule(engine: EngineType) -> Rule:
    """Return the rule on what an engine shares: its message lists all flags."""
    flags = MANAGED[engine]
    short = f"({', '.join(f'-{flag}' for flag in flags.short)}) " if flags.short else ""
    return _no_argument(
        _SHARED,
        f"self.type != '{engine}' || {_unmanaged(engine, _SHARED)}",
        f"the operator sets {', '.join('--' + flag for flag in flags.long)} {short}{_FIELDS}; remove them "
        "here, and write others in full",
        lambda e, arg: e.type == engine and is_managed(engine, arg),
    )


def _managed_rule_of_role(place: _Place) -> Rule:
    *others, last = MANAGED
    choice = "".join(f"self.type == '{engine}' ? {_unmanaged(engine, place)} : " for engine in others)
    return _no_argument(
        place,
        f"({choice}{_unmanaged(last, place)})",
        f"the operator sets one of these flags (the API reference lists them at spec.engine.args) {_FIELDS}; remove it "
        "here, and write others in full",
        lambda e, arg: is_managed(e.type, arg),
    )


def _literal_flags(place: _Place) -> Rule:
    return _no_argument(
        place,
        f"{place.cel}.args.all(a, !a.matches('{FROM_A_VARIABLE}'))",
        "only a value may come from a variable; write --flag=$(NAME)",
        lambda _, arg: re.search(FROM_A_VARIABLE, arg) is not None,
    )


def _variables_once(place: _Place) -> Rule:
    def names(engine: Any) -> list[str]:
        settings = place.settings(engine)
        return [] if settings is None else [item.name for item in settings.env]

    return Rule(
        None,  # the list is keyed by name
        f"{place.path}.env: two variables have the same name; remove one",
        lambda engine: len(set(names(engine))) == len(names(engine)),
    )


def _quantized_checkpoints(place: _Place) -> Rule:
    return Rule(
        f"{place.absent}self.type != 'tensorrt-llm' || !has({place.cel}.quantization)",
        f"{place.path}.quantization: tensorrt-llm takes it from the checkpoint and quantises nothing itself; remove "
        "it, and serve a quantised checkpoint",
        lambda e: e.type != "tensorrt-llm" or getattr(place.settings(e), "quantization", None) is None,
    )


def _whole_prompts(place: _Place) -> Rule:
    return Rule(
        f"{place.absent}self.type != 'neuron' || !has({place.cel}.maxNumBatchedTokens)",
        f"{place.path}.maxNumBatchedTokens: neuron computes each prompt as a whole; remove it",
        lambda e: e.type != "neuron" or getattr(place.settings(e), "max_num_batched_tokens", None) is None,
    )


def _rules() -> Iterator[Rule]:
    for place in _PLACES:
        yield _variables_once(place)
        yield _literal_flags(place)
        yield _quantized_checkpoints(place)
        yield _whole_prompts(place)
    yield from (_managed_rule(engine) for engine in MANAGED)
    yield from (_managed_rule_of_role(place) for place in _ROLES)


SETTING_RULES: tuple[Rule, ...] = tuple(_rules())
