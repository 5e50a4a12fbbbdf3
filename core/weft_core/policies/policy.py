"""What a policy's file declares: a name, the function, its parameters, and where the rule comes from.

Each file of ``routing``, ``binding``, ``order`` and ``qos`` defines one ``POLICY``. The folder's ``__init__`` finds all
of them, so a new policy is one new file; names, docs, CRD rules and compiled forms follow from what it declares.
"""

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from weft_core.policies.inputs import BindingInputs, QueueInputs, RoutingInputs


class PolicyError(ValueError):
    """Report a policy, mode or parameter that does not exist or is out of range; the message names the fix."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One place of a policy's parameter vector; ``low`` and ``high`` are allowed themselves."""

    name: str
    default: float
    low: float
    high: float
    unit: str
    meaning: str

    def check(self, value: float) -> float:
        """Return a value for this parameter.

        Raises:
            PolicyError: it is out of range, or not a number.
        """
        if not self.low <= value <= self.high:  # NaN is in no range
            raise PolicyError(f"{self.name}: {value:g} is not between {self.low:g} and {self.high:g} ({self.unit})")
        return float(value)


def defaults(parameters: tuple[Parameter, ...]) -> tuple[float, ...]:
    """Return the vector of defaults; one place at least, since an empty sequence has no type to compile for."""
    return tuple(parameter.default for parameter in parameters) or (0.0,)


@dataclass(frozen=True, slots=True)
class Policy:
    """What every policy declares: its name, one line on what it does, and where the rule comes from."""

    name: str
    summary: str
    source: str


@dataclass(frozen=True, slots=True)
class RoutingPolicy(Policy):
    """Where a prefill runs: ``route`` returns LOCAL or a prefill worker's place, and a reason's number.

    ``order`` is the queue order, and ``binding`` the binding, that it goes with. The flags say what a caller has to
    provide: predictions that are checked against what is observed (``predicts``), and by default corrected by it
    (``corrected``), the rate of new sessions, the statistics windows, a random order of the workers, a random number.
    Where ``reads_history`` is False, a prefill worker never reads a session's KV from its decode worker: it computes
    what its own prefix cache lacks, as engines do behind routers that know of no sessions.
    """

    route: Callable[[RoutingInputs], tuple[int, int]]
    parameters: tuple[Parameter, ...] = ()
    order: str = "fcfs"
    binding: str = "kv-headroom"
    predicts: bool = False
    corrected: bool = True
    reads_rate: bool = False
    reads_windows: bool = False
    reads_order: bool = False
    reads_uniform: bool = False
    reads_history: bool = True

    @property
    def params(self) -> tuple[float, ...]:
        """Return the vector of defaults."""
        return defaults(self.parameters)


@dataclass(frozen=True, slots=True)
class BindingPolicy(Policy):
    """Which decode worker a new session is bound to: ``bind`` returns its place, -1 when none has room."""

    bind: Callable[[BindingInputs], int]
    reads_prefix_hits: bool = False
    """Whether it looks at prefix caches."""


@dataclass(frozen=True, slots=True)
class QueueOrder(Policy):
    """Which queued prefill runs next: ``next_task`` returns its place."""

    next_task: Callable[[QueueInputs], int]
    by_deadline: bool = False
    """Whether it is cheapest over a queue that is kept in the order of deadlines."""
    rearranges: bool = False
    """Whether it writes ``head``, a new order of the first tasks."""


@dataclass(frozen=True, slots=True)
class QosRule(Policy):
    """A rule of quality of service, applied beside the routing policy."""

    parameters: tuple[Parameter, ...]


def policies_in(package: str, path: list[str]) -> Mapping[str, Any]:
    """Return what the files of a package declare as ``POLICY``, by name, in the order of the files."""
    modules = [import_module(f"{package}.{found.name}") for found in pkgutil.iter_modules(path)]
    return {module.POLICY.name: module.POLICY for module in modules}
