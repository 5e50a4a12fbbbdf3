"""The condition EnginePlugin, from heartbeats: sidecars query each engine once after its start."""

from collections.abc import Mapping, Sequence

from weft_core.heartbeat import WorkerRecord
from weft_operator.api.conditions import ConditionValue

MAX_NAMED = 5
_WITHOUT = "streams carry no KV handles and transfer parameters are not checked there"


def check_plugin(ready: Sequence[str], heartbeats: Mapping[str, WorkerRecord]) -> ConditionValue | None:
    """Return the condition EnginePlugin; ``ready`` are the names of the ready workers.

    None without any heartbeat of ready workers: the old condition stays.
    """
    if ready and not heartbeats:
        return None
    reported = {name: heartbeats[name] for name in ready if name in heartbeats and heartbeats[name].engine_plugin}
    off = [name for name, record in reported.items() if record.engine_plugin == "off"]
    if off:
        versions = ", ".join(sorted({reported[name].engine_version for name in off}))
        why = f"the plug-in stays off on vLLM {versions}, which it was not tested with, at {_named(off)}"
        return ConditionValue("False", "PluginOff", f"{why}: {_WITHOUT}; use an image with vLLM 0.30 to 0.32")
    absent = [name for name, record in reported.items() if record.engine_plugin == "absent"]
    if absent:
        remedy = "build spec.engine.image with images/vllm, and name weft_kv in VLLM_PLUGINS"
        return ConditionValue("False", "PluginAbsent", f"no plug-in answers at {_named(absent)}: {_WITHOUT}; {remedy}")
    if not reported or len(reported) < len(ready):
        return ConditionValue(
            "Unknown", "NotYetReported", f"{len(reported)} of {len(ready)} ready engines have reported"
        )
    versions = ", ".join(sorted({record.engine_version for record in reported.values()}))
    return ConditionValue("True", "PluginActive", f"all {len(reported)} engines have it, on vLLM {versions}")


def _named(names: Sequence[str]) -> str:
    left = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{', '.join(names[:MAX_NAMED])}{left}"
