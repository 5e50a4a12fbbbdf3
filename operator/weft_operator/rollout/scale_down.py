"""The scale-down victim: which worker leaves first when a group has more workers than it should."""

from collections.abc import Mapping, Sequence

from weft_core.heartbeat import WorkerRecord, by_value
from weft_operator.workers.fleet import LiveWorker


def keep_order(members: Sequence[LiveWorker], records: Mapping[str, WorkerRecord]) -> list[LiveWorker]:
    """Return the members, those to keep longest first; ``records`` are the workers' newest heartbeats by name.

    A worker that a person wants drained leaves first, then one that does not serve, then whoever loses the least
    (``weft_core.heartbeat.by_value``). Without any heartbeat the newest leaves first; beside others' heartbeats a
    worker without one has no sessions: coordinators do not know it.
    """
    victims = by_value(records[item.name] for item in members if item.name in records)
    rank = {record.worker: number for number, record in enumerate(victims, start=1)}
    oldest_first = sorted(members, key=lambda item: (item.created, item.worker.index))
    return sorted(oldest_first, key=lambda item: (item.drain_asked, not item.serving, -rank.get(item.name, 0)))
