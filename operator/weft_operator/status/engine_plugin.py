"""Judge from heartbeats whether the engines have Weft's plug-in: sidecars ask each engine once after its start."""

from collections.abc import Mapping, Sequence
from typing import Literal

from weft_core.heartbeat import WorkerRecord

MAX_NAMED = 5
_WITHOUT = "streams carry no KV handles and transfer parameters are not checked there"

Said = tuple[Literal["True", "False", "Unknown"], str, str]


def seen_plugin(ready: Sequence[str], heartbeats: Mapping[str, WorkerRecord]) -> Said | None:
    """Return status, reason and message of EnginePlugin; ``ready`` names the workers whose engines serve.

    None where no heartbeat is seen at all: nobody may conclude anything then, and what was said before stays.
    """
    if ready and not heartbeats:
        return None
    told = {name: heartbeats[name] for name in ready if name in heartbeats and heartbeats[name].engine_plugin}
    off = [name for name, record in told.items() if record.engine_plugin == "off"]
    if off:
        versions = ", ".join(sorted({told[name].engine_version for name in off}))
        why = f"the plug-in stays off on vLLM {versions}, which it was not tested with, at {_named(off)}"
        return "False", "PluginOff", f"{why}: {_WITHOUT}; take an image with vLLM 0.32"
    absent = [name for name, record in told.items() if record.engine_plugin == "absent"]
    if absent:
        remedy = "build spec.engine.image with images/vllm, and name weft_kv in VLLM_PLUGINS"
        return "False", "PluginAbsent", f"no plug-in answers at {_named(absent)}: {_WITHOUT}; {remedy}"
    if not told or len(told) < len(ready):
        return "Unknown", "NotYetReported", f"{len(told)} of {len(ready)} ready engines have told whether they have it"
    versions = ", ".join(sorted({record.engine_version for record in told.values()}))
    return "True", "PluginActive", f"all {len(told)} engines have it, on vLLM {versions}"


def _named(names: Sequence[str]) -> str:
    left = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{', '.join(names[:MAX_NAMED])}{left}"
