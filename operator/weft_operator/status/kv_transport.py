"""The condition KVTransportVerified, from heartbeats: sidecars check and prove the KV path of each pair."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from weft_core.heartbeat import WorkerRecord
from weft_core.layouts import ROLES, duties_of
from weft_operator.api.conditions import ConditionValue
from weft_operator.render.engines.container import SIDE_CHANNEL_PORT

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
            "engines connect, but their data ports do not answer",
            "let TCP ports 32768 to 60999 through between the nodes (docs/network.md)",
        ),
        "transfer": (
            "TransferFailed",
            "engines connect, but KV is not transferred",
            "see the engines' logs for NIXL: versions, dtype and block size must agree, and data ports must be open",
        ),
        "transport": (
            "WrongTransport",
            "KV goes over TCP though the pool has RDMA devices",
            "see UCX_TLS in spec.engine.env and the engines' logs for UCX",
        ),
    }
)
"""Reason, fault and remedy by the sidecars' fault name; the first one found is reported."""


def check_transport(ready: Sequence[str], heartbeats: Mapping[str, WorkerRecord]) -> ConditionValue | None:
    """Return the condition KVTransportVerified; ``ready`` are the names of the ready workers.

    None without any heartbeat of ready workers: the old condition stays.
    """
    if ready and not heartbeats:
        return None
    records = [heartbeats[name] for name in ready if name in heartbeats]
    for fault, (reason, wrong, remedy) in _FAULTS.items():
        pairs = [f"{r.worker} to {other}" for r in records for other, why in r.kv_faults if why == fault]
        if pairs:
            left = f" and {len(pairs) - MAX_NAMED} more" if len(pairs) > MAX_NAMED else ""
            named = f"{', '.join(pairs[:MAX_NAMED])}{left}"
            return ConditionValue("False", reason, f"{wrong} from {named}: {_NOTHING}; {remedy}")
    if not ready or len(records) < len(ready) or any(_untried(record, records) for record in records):
        return ConditionValue("Unknown", "NotYetTried", "not every ready worker has checked all of the other role yet")
    readers = [record for record in records if record.kv_proven >= 0 and record.role != "prefill"]
    pairs_, proven = sum(_others(record, records) for record in readers), sum(r.kv_proven for r in readers)
    if not pairs_ or proven < pairs_:
        return ConditionValue(
            "Unknown", "NotYetProven", f"KV was transferred between {proven} of {pairs_} pairs so far"
        )
    return ConditionValue(
        "True", "TransportVerified", f"KV is transferred between all {pairs_} pairs{_figures(readers)}"
    )


def _figures(readers: Sequence[WorkerRecord]) -> str:
    """Return the transports, the slowest rate and the longest latency of a block, as text."""
    transports = sorted({name for record in readers for name in record.kv_transports})
    rates = [record.kv_bytes_per_s for record in readers if record.kv_bytes_per_s is not None]
    latencies = [record.kv_latency for record in readers if record.kv_latency is not None]
    if not (transports and rates and latencies):
        return "; rates are measured when engines are idle"
    return (
        f" over {' and '.join(transports)}, at {min(rates) / 1e9:.2g} GB/s or more, "
        f"the first block after {max(latencies) * 1e3:.2g} ms or less"
    )


def _others(record: WorkerRecord, records: Sequence[WorkerRecord]) -> int:
    """Return the number of workers with which a worker exchanges KV."""
    mine = set(duties_of(record.role))
    return sum(
        other.worker != record.worker
        and other.revision == record.revision
        and len(mine | set(duties_of(other.role))) == len(ROLES)
        for other in records
    )


def _untried(record: WorkerRecord, records: Sequence[WorkerRecord]) -> bool:
    """Return whether a worker has not yet checked all of the other role; an old sidecar never will."""
    return record.kv_open < _others(record, records)
