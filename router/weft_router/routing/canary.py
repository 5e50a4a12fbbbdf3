"""Which sessions try a new plan: a share of the new ones, chosen by hash, and the workers that serve each side.

Workers of the canary and the others neither share a session nor a prefill, as far as both have such workers, so what is
seen of one says nothing of the other.
"""

from collections.abc import Collection, Sequence
from hashlib import blake2b

from weft_core.heartbeat import WorkerRecord
from weft_core.parallelism import Degree
from weft_core.worker_roles import has_duty
from weft_router.config import CanaryConfig

_ALL = 10_000
"""Resolution of shares: a hundredth of a percent."""


class Canary:
    """The canary of a configuration; without one every worker is of the same side."""

    def __init__(self, config: CanaryConfig | None) -> None:
        groups = () if config is None else config.groups
        self._groups = {(group.role, group.degree, group.pool, group.revision) for group in groups}
        self._own_prefill = any(has_duty(group.role, "prefill") for group in groups)
        self._config = config
        self._seen: Sequence[WorkerRecord] = ()
        self._sides: tuple[list[WorkerRecord], list[WorkerRecord]] = ([], [])

    def holds(self, record: WorkerRecord) -> bool:
        """Return whether a worker is of the canary."""
        return self.names(record.role, record.degree, record.pool, record.revision)

    def names(self, role: str, degree: Degree, pool: str, revision: str) -> bool:
        """Return whether a group of workers is of the canary."""
        return (role, degree, pool, revision) in self._groups

    def takes(self, session: str) -> bool:
        """Return whether a new session tries the new plan: the same answer everywhere and every time."""
        if self._config is None:
            return False
        digest = blake2b(f"{self._config.salt}\0{session}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) % _ALL < self._config.percent * _ALL / 100

    def decode_for(
        self,
        session: str,
        records: Sequence[WorkerRecord],
        *,
        before: WorkerRecord | None,
        known: bool,
        avoid: Collection[str] = (),
    ) -> Sequence[WorkerRecord]:
        """Return the workers that may be bound to a session; all of them where its side has none but those to avoid.

        ``known``: it is no new one. It was bound to the worker ``before``, if that is still heard of, and stays on that
        side; else it is not one that tries the plan.
        """
        if not self._groups:
            return records
        if records is not self._seen:  # as long as nothing changed, the same list
            self._seen = records
            self._sides = (
                [record for record in records if not self.holds(record)],
                [record for record in records if self.holds(record)],
            )
        tries = (before is not None and self.holds(before)) if known else self.takes(session)
        mine = self._sides[tries]
        return mine if any(record.worker not in avoid for record in mine) else records

    def prefill_for(self, records: Sequence[WorkerRecord], *, mine: bool) -> list[WorkerRecord]:
        """Return the workers that may prefill for one of the canary (``mine``) or another.

        A worker is none of its own: a canary that has one with both roles shares the others' prefill workers.
        """
        if not self._own_prefill:
            return list(records)
        found = [record for record in records if self.holds(record) == mine]
        return found or list(records)
