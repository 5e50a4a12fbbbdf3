"""What is judged of a service's engines by their workers' heartbeats: which conditions, and when to look again."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from weft_core.heartbeat import WorkerRecord
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.engines.kv_transport import seen_transport
from weft_operator.engines.plugin import Said, seen_plugin

EngineCondition = Literal["EnginePlugin", "KVTransportVerified"]
Judge = Callable[[Sequence[str], Mapping[str, WorkerRecord]], Said | None]

AGAIN_S = 5.0
"""When to look again for what sidecars find out within seconds after a start; all else is seen with the next resync."""

UNHEARD: Mapping[EngineCondition, Said] = {
    "EnginePlugin": ("Unknown", "NotYetTold", "no heartbeat is seen of any engine"),
    "KVTransportVerified": ("Unknown", "NotYetTried", "no heartbeat is seen of any engine"),
}
"""What is said before any heartbeat was seen."""


def judges(spec: DisaggInferenceServiceSpec, *, paired: bool) -> Mapping[EngineCondition, Judge]:
    """Return what is asked of heartbeats; nothing for most engines, whose sidecars would not tell."""
    asked: dict[EngineCondition, Judge] = {}
    if spec.engine.plugin is not None:
        asked["EnginePlugin"] = seen_plugin
    if spec.engine.type == "vllm" and paired:
        asked["KVTransportVerified"] = seen_transport
    return asked


def ask_again_s(
    asked: Mapping[EngineCondition, Judge], ready: Sequence[str], heartbeats: Mapping[str, WorkerRecord]
) -> float | None:
    """Return when to look again for what a ready worker's sidecar is about to tell; None where nothing is to come."""
    records = [heartbeats[name] for name in ready if name in heartbeats]
    coming = len(records) < len(ready)
    coming = coming or ("EnginePlugin" in asked and any(not record.engine_plugin for record in records))
    coming = coming or (
        "KVTransportVerified" in asked and _is_trying(asked["KVTransportVerified"](ready, heartbeats), records)
    )
    return AGAIN_S if asked and heartbeats and coming else None


def _is_trying(said: Said | None, records: Sequence[WorkerRecord]) -> bool:
    return said is not None and said[0] == "Unknown" and any(record.kv_open >= 0 for record in records)
