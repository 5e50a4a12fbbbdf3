"""The condition AdaptersLoaded, from heartbeats: sidecars load adapters into their engines while these run."""

from collections.abc import Mapping, Sequence

from weft_core.adapters import adapter_name, adapter_version
from weft_core.heartbeat import WorkerRecord
from weft_operator.api.conditions import ConditionValue
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.engines.adapter_source import adapter_places

MAX_NAMED = 3


def adapter_versions(spec: DisaggInferenceServiceSpec) -> tuple[str, ...]:
    """Return the adapters that every engine is to have, as heartbeats name them."""
    return tuple(adapter_version(name, place) for name, place in adapter_places(spec).items())


def check_adapters(
    wanted: Sequence[str], ready: Sequence[str], heartbeats: Mapping[str, WorkerRecord]
) -> ConditionValue | None:
    """Return the condition AdaptersLoaded; ``ready`` are the names of the ready workers.

    None without any heartbeat of ready workers: the old condition stays.
    """
    if ready and not heartbeats:
        return None
    records = [heartbeats[name] for name in ready if name in heartbeats]
    for version in wanted:
        refused = {r.worker: words for r in records for name, words in r.adapter_faults if name == version}
        if refused:
            workers = sorted(refused)
            more = f" and {len(workers) - MAX_NAMED} more" if len(workers) > MAX_NAMED else ""
            return ConditionValue(
                "False",
                "LoadFailed",
                f"{adapter_name(version)} was not loaded by the engine of {', '.join(workers[:MAX_NAMED])}{more}: "
                f"{refused[workers[0]]}",
            )
    missing = [version for version in wanted if not all(record.has_adapter(version) for record in records)]
    if not records or len(records) < len(ready) or missing:
        coming = f"; {adapter_name(missing[0])} is still to be loaded" if missing and records else ""
        return ConditionValue(
            "Unknown", "NotYetLoaded", f"not every ready engine has reported all {len(wanted)} adapters{coming}"
        )
    return ConditionValue("True", "AllLoaded", f"all {len(records)} ready engines have all {len(wanted)} adapters")
