"""Gather all policies: routing, bindings, queue orders and quality of service, each declared by its own file.

The names are what a service writes into ``spec.routing``; docs/reference/policies.md is made from this module.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from weft_core import timing
from weft_core.policies import binding, finish, order, qos, retention, routing
from weft_core.policies.order.moore_hodgson import AGEING_CAP
from weft_core.policies.policy import PolicyError
from weft_core.policies.reasons import meanings
from weft_core.policies.routing import weft
from weft_core.policies.routing.weft import MODES as MODES
from weft_core.policies.routing.weft import ModeName as ModeName

POLICIES = routing.POLICIES
BINDINGS = binding.POLICIES
ORDERS = order.POLICIES
QOS = qos.POLICIES
MEANINGS: Mapping[str, str] = meanings()
REASONS: tuple[str, ...] = tuple(MEANINGS)
"""Names of the reasons, in the order of their numbers."""

if TYPE_CHECKING:
    PolicyName: TypeAlias = str
    BindingName: TypeAlias = str
    OrderName: TypeAlias = str
else:  # pydantic checks names against these
    PolicyName = Literal[tuple(POLICIES)]
    BindingName = Literal[tuple(BINDINGS)]
    OrderName = Literal[tuple(ORDERS)]

DEFAULT_MODE: ModeName = "imd"
"""The mode of ``weft`` where none is named. Live, a prompt that cannot be sliced is routed as by ``ia``."""
DEFAULT_WINDOW = 3
DEFAULT_CAP = int(AGEING_CAP.default)


def parameters(
    policy: str, mode: str = DEFAULT_MODE, overrides: Mapping[str, float] | None = None
) -> tuple[float, ...]:
    """Return a routing policy's parameter vector; ``mode`` counts for ``weft`` alone.

    Raises:
        PolicyError: there is no such policy, mode or parameter, or a value is out of range.
    """
    rule = POLICIES.get(policy)
    if rule is None:
        raise PolicyError(f"policy: {policy!r} is not one of {', '.join(POLICIES)}")
    values = list(rule.params)
    if policy == "weft":
        if mode not in MODES:
            raise PolicyError(f"mode: {mode!r} is not one of {', '.join(MODES)}")
        values[weft.MODE] = float(MODES[mode])
    places = {parameter.name: at for at, parameter in enumerate(rule.parameters)}
    for name, value in (overrides or {}).items():
        at = places.get(name)
        if at is None or (policy == "weft" and at == weft.MODE):
            known = ", ".join(n for n in places if n != "mode") or "none"
            raise PolicyError(f"params.{name}: {policy} has no such parameter; it has {known}")
        try:
            values[at] = rule.parameters[at].check(value)
        except PolicyError as error:
            raise PolicyError(f"params.{error}") from None
    return tuple(values)


def compilable_functions() -> Iterator[Callable[..., object]]:
    """Yield every function that compiled code may call: of policies, costs, finishes and retention."""
    folders = tuple(f"{package.__name__}." for package in (routing, binding, order))
    alone = {module.__name__ for module in (timing, finish, retention)}
    for name in sorted(sys.modules):
        if name in alone or name.startswith(folders):
            for function in vars(sys.modules[name]).values():
                if inspect.isfunction(function) and function.__module__ == name:
                    yield function
