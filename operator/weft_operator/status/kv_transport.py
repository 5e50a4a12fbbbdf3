"""Judge from heartbeats whether KV goes between the engines as it should: sidecars try and prove each pair."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from weft_core.heartbeat import WorkerRecord
from weft_operator.render.engines.container import SIDE_CHANNEL_PORT
from weft_operator.status.engine_plugin import Said

MAX_NAMED = 3
_NOTHING = "nothing is prefilled over these pairs"
_FAULTS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "side-channel": (
            "SideChannelClosed",
            f"TCP port {SIDE_CHANNEL_PORT} is not reached",
            "let it and the data ports through between the nodes (docs/network.md)",
        ),
        "data-port": (
            "DataPortsClosed",
            "engines meet, but where their data goes nobody answers",
            "let TCP ports 32768 to 60999 through between the nodes (docs/network.md)",
        ),
        "transfer": (
            "TransferFailed",
            "engines meet, but KV does not come",
            "see the engines' logs for NIXL: versions, dtype and block size have to agree, and data ports to be open",
        ),
        "transport": (
            "WrongTransport",
            "KV goes over TCP though the pool has RDMA devices",
            "see UCX_TLS in spec.engine.env and the engines' logs for UCX",
        ),
    }
)
"""Reason, what is wrong and the remedy, by what sidecars call it; the first that is seen is told."""


def seen_transport(ready: Sequence[str], heartbeats: Mapping[str, WorkerRecord]) -> Said | None:
    """Return status, reason and message of KVTransportVerified; ``ready`` names the workers whose engines serve.

    None where no heartbeat is seen at all: nobody may conclude anything then, and what was said before stays.
    """
    if ready and not heartbeats:
        return None
    records = [heartbeats[name] for name in ready if name in heartbeats]
    for fault, (reason, wrong, remedy) in _FAULTS.items():
        pairs = [f"{r.worker} to {other}" for r in records for other, why in r.kv_faults if why == fault]
        if pairs:
            left = f" and {len(pairs) - MAX_NAMED} more" if len(pairs) > MAX_NAMED else ""
            return "False", reason, f"{wrong} from {', '.join(pairs[:MAX_NAMED])}{left}: {_NOTHING}; {remedy}"
    if not ready or len(records) < len(ready) or any(_untried(record, records) for record in records):
        return "Unknown", "NotYetTried", "not every ready worker has tried all of the other role yet"
    readers = [record for record in records if record.kv_proven >= 0 and record.role == "decode"]
    pairs_, proven = sum(_others(record, records) for record in readers), sum(r.kv_proven for r in readers)
    if not pairs_ or proven < pairs_:
        return "Unknown", "NotYetProven", f"KV has gone between {proven} of {pairs_} pairs so far"
    return "True", "TransportVerified", f"KV goes between all {pairs_} pairs{_figures(readers)}"


def _figures(readers: Sequence[WorkerRecord]) -> str:
    """Say by what it goes, how fast at least, and how long a block takes at most."""
    transports = sorted({name for record in readers for name in record.kv_transports})
    rates = [record.kv_bytes_per_s for record in readers if record.kv_bytes_per_s is not None]
    latencies = [record.kv_latency for record in readers if record.kv_latency is not None]
    if not (transports and rates and latencies):
        return "; figures come when engines have time"
    return (
        f" over {' and '.join(transports)}, at {min(rates) / 1e9:.2g} GB/s or more, "
        f"the first block after {max(latencies) * 1e3:.2g} ms or less"
    )


def _others(record: WorkerRecord, records: Sequence[WorkerRecord]) -> int:
    """Return with how many workers one hands KV over."""
    return sum(other.role != record.role and other.revision == record.revision for other in records)


def _untried(record: WorkerRecord, records: Sequence[WorkerRecord]) -> bool:
    """Tell whether a worker has yet to try one of the other role; one whose sidecar tries none never will."""
    return record.kv_open < _others(record, records)
