"""Ask a binding about live workers, and remember whose turn it is."""

from collections.abc import Mapping, Sequence

from weft_core.policies.catalogue import BINDINGS
from weft_core.policies.codes import ROUND_ROBIN
from weft_core.policies.decide_binding import bind
from weft_core.policies.parameter import PolicyError
from weft_core.policies.snapshot import BindingView


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

    def choose(
        self, workers: Sequence[BindingView], *, need: int, prefix_hit: Mapping[str, int] | None = None
    ) -> str | None:
        """Return the decode worker of a session that needs ``need`` tokens, None when none has room.

        Ties go to the first name; ``round-robin`` goes by name, on from the last chosen one, whoever joins or leaves.
        """
        ordered = sorted(workers, key=lambda view: view.worker)
        hits = prefix_hit or {}
        cursor = sum(view.worker <= self._last for view in ordered) if self._code == ROUND_ROBIN else 0
        chosen = bind(
            self._code,
            need,
            [view.kv_capacity - view.kv_used for view in ordered],
            [view.kv_capacity for view in ordered],
            [view.sessions for view in ordered],
            [hits.get(view.worker, 0) for view in ordered],
            [view.load for view in ordered],
            cursor,
        )
        if chosen < 0:
            return None
        self._last = ordered[chosen].worker
        return self._last
