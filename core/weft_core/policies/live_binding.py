"""Ask a binding about live workers, and remember whose turn it is."""

from collections.abc import Mapping, Sequence
from operator import attrgetter

from weft_core.policies.catalogue import BINDINGS
from weft_core.policies.codes import KV_AWARE, PREFIX_AWARE, ROUND_ROBIN
from weft_core.policies.decide_binding import bind
from weft_core.policies.parameter import PolicyError
from weft_core.policies.snapshot import BindingView

_NAME = attrgetter("worker")


class Binding:
    """The binding rule of a service; remembers whose turn it is."""

    def __init__(self, name: str) -> None:
        """Look the rule up.

        Raises:
            PolicyError: there is no such binding.
        """
        rule = BINDINGS.get(name)
        if rule is None:
            raise PolicyError(f"binding: {name!r} is not one of {', '.join(BINDINGS)}")
        self._code = rule.code
        self._last = ""

    @property
    def reads_hits(self) -> bool:
        """Tell whether the rule looks at prefix caches."""
        return self._code in (PREFIX_AWARE, KV_AWARE)

    def choose(
        self, workers: Sequence[BindingView], *, need: int, prefix_hit: Mapping[str, int] | None = None
    ) -> str | None:
        """Return the decode worker of a session that needs ``need`` tokens, None when none has room.

        Ties go to the first name; ``round-robin`` goes by name, on from the last chosen one, whoever joins or leaves.
        """
        ordered = sorted(workers, key=_NAME)
        if not ordered:
            return None
        names, used, capacity, sessions, load = zip(*ordered, strict=True)
        cursor = sum(name <= self._last for name in names) if self._code == ROUND_ROBIN else 0
        hits = [prefix_hit.get(name, 0) for name in names] if prefix_hit else [0] * len(names)
        free = [most - taken for most, taken in zip(capacity, used, strict=True)]
        chosen = bind(self._code, need, free, capacity, sessions, hits, load, cursor)
        if chosen < 0:
            return None
        self._last = names[chosen]
        return self._last
