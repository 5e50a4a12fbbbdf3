"""Judge from heartbeats whether engines reach each other where they meet to hand KV over."""

from collections.abc import Mapping, Sequence

from weft_core.heartbeat import WorkerRecord
from weft_operator.engines.container import SIDE_CHANNEL_PORT
from weft_operator.engines.plugin import Said

MAX_NAMED = 3


def seen_paths(ready: Sequence[str], heartbeats: Mapping[str, WorkerRecord]) -> Said | None:
    """Return status, reason and message of KVPathsOpen; ``ready`` names the workers whose engines serve.

    None where no heartbeat is seen at all: nobody may conclude anything then, and what was said before stays.
    """
    if ready and not heartbeats:
        return None
    records = [heartbeats[name] for name in ready if name in heartbeats]
    closed = [f"{record.worker} to {other}" for record in records for other in record.kv_closed]
    if closed:
        left = f" and {len(closed) - MAX_NAMED} more" if len(closed) > MAX_NAMED else ""
        return (
            "False",
            "SideChannelClosed",
            (
                f"TCP port {SIDE_CHANNEL_PORT} is not reached from {', '.join(closed[:MAX_NAMED])}{left}: nothing is "
                "prefilled over these pairs; let it and the data ports through between the nodes (docs/network.md)"
            ),
        )
    if not ready or len(records) < len(ready) or any(untried(record, records) for record in records):
        return "Unknown", "NotYetTried", "not every ready worker has tried all of the other role yet"
    pairs = sum(record.kv_open for record in records)
    return "True", "SideChannelOpen", f"the side channel is reached on all {pairs} ways between workers"


def untried(record: WorkerRecord, records: Sequence[WorkerRecord]) -> bool:
    """Tell whether a worker has yet to try one of the other role; one whose sidecar tries none never will."""
    others = sum(other.role != record.role and other.revision == record.revision for other in records)
    return record.kv_open < others
