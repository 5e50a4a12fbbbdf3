"""The conditions that follow from workers' heartbeats, and when to read heartbeats again."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

from weft_core.heartbeat import WorkerRecord
from weft_operator.api.conditions import ConditionValue
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.engines.adapter_source import loads_at_run_time
from weft_operator.status.adapters import adapter_versions, check_adapters
from weft_operator.status.engine_plugin import check_plugin
from weft_operator.status.kv_transport import check_transport

EngineCondition = Literal["EnginePlugin", "KVTransportVerified", "AdaptersLoaded"]
EngineCheck = Callable[[Sequence[str], Mapping[str, WorkerRecord]], ConditionValue | None]
"""Computes a condition from the names of ready workers and their heartbeats; None without any heartbeat."""

RECHECK_S = 5.0
"""Interval of reading heartbeats while sidecars still check their engines after a start; later changes are read with
the next resync, or with the next proof of KV paths."""
PROOF_S = 60.0
"""Default interval of routers' proofs of KV paths."""

NO_HEARTBEATS: Mapping[EngineCondition, ConditionValue] = {
    "EnginePlugin": ConditionValue("Unknown", "NotYetReported", "there is no heartbeat of any engine"),
    "KVTransportVerified": ConditionValue("Unknown", "NotYetTried", "there is no heartbeat of any engine"),
    "AdaptersLoaded": ConditionValue("Unknown", "NotYetLoaded", "there is no heartbeat of any engine"),
}
"""The conditions before the first heartbeat."""


def engine_checks(spec: DisaggInferenceServiceSpec, *, paired: bool) -> Mapping[EngineCondition, EngineCheck]:
    """Return the conditions of a service's engines with their checks; none for engines whose sidecars report none."""
    checks: dict[EngineCondition, EngineCheck] = {}
    if spec.engine.plugin is not None:
        checks["EnginePlugin"] = check_plugin
    if spec.engine.type == "vllm" and paired:
        checks["KVTransportVerified"] = check_transport
    if loads_at_run_time(spec):
        checks["AdaptersLoaded"] = partial(check_adapters, adapter_versions(spec))
    return checks


def next_check_s(
    checks: Mapping[EngineCondition, EngineCheck],
    ready: Sequence[str],
    heartbeats: Mapping[str, WorkerRecord],
    *,
    proof_s: float | None = None,
) -> float | None:
    """Return in how many seconds to read heartbeats again; None where no change is expected.

    ``proof_s`` is the service's interval of proofs of KV paths: a short one, or a closed path, is read more often.
    """
    records = [heartbeats[name] for name in ready if name in heartbeats]
    coming = len(records) < len(ready)
    coming = coming or ("EnginePlugin" in checks and any(not record.engine_plugin for record in records))
    if not checks or not heartbeats:
        return None
    found = {kind: check(ready, heartbeats) for kind, check in checks.items()}
    transport, adapters = found.get("KVTransportVerified"), found.get("AdaptersLoaded")
    coming = coming or (adapters is not None and adapters.status != "True")
    if coming or _is_pending(transport, records):
        return RECHECK_S
    proven_again = transport is not None and (transport.status == "False" or proof_s is not None)
    return max(RECHECK_S, (proof_s or PROOF_S) / 2) if proven_again else None


def _is_pending(transport: ConditionValue | None, records: Sequence[WorkerRecord]) -> bool:
    return transport is not None and transport.status == "Unknown" and any(record.kv_open >= 0 for record in records)
