"""Apply a binding policy to live workers, with the cursor of round-robin."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from weft_core.policies.inputs import BindingInputs
from weft_core.policies.policy import PolicyError
from weft_core.policies.registry import BINDINGS
from weft_core.policies.snapshot import BindingView

_NAME = attrgetter("worker")


class Candidates:
    """Decode workers in the order of their names, a column for each figure that bindings read.

    The columns are floats, as policies read them: converting integers would cost more than a policy's arithmetic.
    """

    __slots__ = ("_nothing", "capacity", "free", "load", "names", "sessions")

    def __init__(self, workers: Iterable[BindingView]) -> None:
        self.names: list[str] = []
        self.free: list[float] = []
        self.capacity: list[float] = []
        self.sessions: list[float] = []
        self.load: list[float] = []
        for name, used, capacity, sessions, load in sorted(workers, key=_NAME):
            self.names.append(name)
            self.free.append(float(capacity - used))
            self.capacity.append(float(capacity))
            self.sessions.append(float(sessions))
            self.load.append(float(load))
        self._nothing = [0.0] * len(self.names)

    def place(self, at: int, tokens: float, sessions: float = 1.0) -> None:
        """Add sessions and their tokens to a worker's columns; negative ones expired."""
        self.free[at] -= tokens
        self.sessions[at] += sessions
        self.load[at] += sessions

    def hits(self, prefix_hit: Mapping[str, int] | None) -> list[float]:
        """Return the column of prefix hits in tokens."""
        return [float(prefix_hit.get(name, 0)) for name in self.names] if prefix_hit else self._nothing

    def emptiest(self) -> int:
        """Return the worker with the least share of its KV in use, then the fewest sessions, then the first."""
        shares = [(most - free) / max(1.0, most) for free, most in zip(self.free, self.capacity, strict=True)]
        return min(range(len(shares)), key=lambda i: (shares[i], self.sessions[i]))


class Binding:
    """The binding policy of a service, with the cursor of round-robin."""

    def __init__(self, name: str) -> None:
        """Look the policy up.

        Raises:
            PolicyError: there is no such binding.
        """
        policy = BINDINGS.get(name)
        if policy is None:
            raise PolicyError(f"binding: {name!r} is not one of {', '.join(BINDINGS)}")
        self._policy = policy
        self._last = ""

    @property
    def reads_prefix_hits(self) -> bool:
        """Return whether the policy looks at prefix caches."""
        return self._policy.reads_prefix_hits

    def choose(
        self,
        workers: Sequence[BindingView],
        *,
        needed_kv: int,
        prefix_hit: Mapping[str, int] | None = None,
        in_memory: Mapping[str, int] | None = None,
    ) -> str | None:
        """Return the decode worker of a session of ``needed_kv`` tokens, None when none has room.

        ``in_memory`` are the hits in GPU memory, None: all are.

        Ties go to the first name; ``round-robin`` continues by name from the last chosen one, whichever joined or left.
        """
        among = Candidates(workers)
        chosen = self.among(among, needed_kv=needed_kv, prefix_hit=prefix_hit, in_memory=in_memory)
        return None if chosen < 0 else among.names[chosen]

    def among(
        self,
        workers: Candidates,
        *,
        needed_kv: int,
        prefix_hit: Mapping[str, int] | None = None,
        in_memory: Mapping[str, int] | None = None,
    ) -> int:
        """Return the index of the decode worker of a session of ``needed_kv`` tokens, -1 when none has room."""
        names = workers.names
        hits = workers.hits(prefix_hit)
        chosen = self._policy.bind(
            BindingInputs(
                needed_kv, workers.free, workers.capacity, workers.sessions, hits, workers.load,
                bisect_right(names, self._last), hits if in_memory is None else workers.hits(in_memory),
            )
        )  # fmt: skip
        if chosen >= 0:
            self._last = names[chosen]
        return chosen
