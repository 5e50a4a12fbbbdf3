"""The scale-down order: which worker is removed first when a group has too many."""

from collections.abc import Mapping, Sequence

from weft_core.heartbeat import WorkerRecord, scale_down_order
from weft_operator.workers.fleet import LiveWorker


def retention_order(members: Sequence[LiveWorker], records: Mapping[str, WorkerRecord]) -> list[LiveWorker]:
    """Return the members in the order in which to keep them; ``records`` are the newest heartbeats by worker name.

    A worker that a person drains is removed first, then one that does not serve, then the one with the least value
    (``weft_core.heartbeat.scale_down_order``). Without heartbeats the newest is removed first; a worker without one
    beside others with them has no sessions, because coordinators do not know it.
    """
    victims = scale_down_order(records[item.name] for item in members if item.name in records)
    rank = {record.worker: number for number, record in enumerate(victims, start=1)}
    oldest_first = sorted(members, key=lambda item: (item.created, item.worker.index))
    return sorted(oldest_first, key=lambda item: (item.drain_requested, not item.serving, -rank.get(item.name, 0)))
