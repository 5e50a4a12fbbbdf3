"""What is judged of a service's engines by their workers' heartbeats: which conditions, and when to look again."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from weft_core.heartbeat import WorkerRecord
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.status.engine_plugin import Said, seen_plugin
from weft_operator.status.kv_transport import seen_transport

EngineCondition = Literal["EnginePlugin", "KVTransportVerified"]
Judge = Callable[[Sequence[str], Mapping[str, WorkerRecord]], Said | None]

RECHECK_S = 5.0
"""When to look again for what sidecars find out within seconds after a start; all else is seen with the next resync,
and what KV paths are like when they are tried again, where that is sooner."""
PROOF_S = 60.0
"""How often routers prove a KV path again where the service does not say."""

NO_HEARTBEATS: Mapping[EngineCondition, Said] = {
    "EnginePlugin": ("Unknown", "NotYetReported", "no heartbeat is seen of any engine"),
    "KVTransportVerified": ("Unknown", "NotYetTried", "no heartbeat is seen of any engine"),
}
"""What is said before any heartbeat was seen."""


def engine_judges(spec: DisaggInferenceServiceSpec, *, paired: bool) -> Mapping[EngineCondition, Judge]:
    """Return what is asked of heartbeats; nothing for most engines, whose sidecars would not tell."""
    asked: dict[EngineCondition, Judge] = {}
    if spec.engine.plugin is not None:
        asked["EnginePlugin"] = seen_plugin
    if spec.engine.type == "vllm" and paired:
        asked["KVTransportVerified"] = seen_transport
    return asked


def next_check_s(
    asked: Mapping[EngineCondition, Judge],
    ready: Sequence[str],
    heartbeats: Mapping[str, WorkerRecord],
    *,
    proof_s: float | None = None,
) -> float | None:
    """Return when to look again for what a ready worker's sidecar is about to tell; None where nothing is to come.

    ``proof_s`` is how often the service has its KV paths proven: one that wants it often is told as often, and a path
    that is closed is seen when it is tried again.
    """
    records = [heartbeats[name] for name in ready if name in heartbeats]
    coming = len(records) < len(ready)
    coming = coming or ("EnginePlugin" in asked and any(not record.engine_plugin for record in records))
    said = asked["KVTransportVerified"](ready, heartbeats) if "KVTransportVerified" in asked else None
    if not asked or not heartbeats:
        return None
    if coming or _is_trying(said, records):
        return RECHECK_S
    tried_again = said is not None and (said[0] == "False" or proof_s is not None)
    return max(RECHECK_S, (proof_s or PROOF_S) / 2) if tried_again else None


def _is_trying(said: Said | None, records: Sequence[WorkerRecord]) -> bool:
    return said is not None and said[0] == "Unknown" and any(record.kv_open >= 0 for record in records)
