"""The reasons of the condition that says what the engines have: EnginePlugin."""

from collections.abc import Mapping
from types import MappingProxyType

from weft_operator.reasons.reason import Reason

ENGINE_PLUGIN: Mapping[str, Reason] = MappingProxyType(
    {
        "PluginActive": Reason(
            "Every ready engine has the plug-in: streams carry KV handles, and engines take transfer parameters from "
            "their sidecars only."
        ),
        "PluginAbsent": Reason(
            "An engine answers without the plug-in. It serves, but later rounds of streamed sessions are prefilled "
            "where they decode, and the engine itself does not check transfer parameters.",
            "Give `spec.engine.image` an image that `images/vllm/Dockerfile` made, and where `spec.engine.env` sets "
            "`VLLM_PLUGINS`, name `weft_kv` in it; or remove `spec.engine.plugin`.",
            cause="The image has no plug-in, or `VLLM_PLUGINS` does not name it.",
        ),
        "PluginOff": Reason(
            "An engine has the plug-in, on a version of vLLM that it was not tested with, so it does nothing there.",
            "Give `spec.engine.image` an image with the version that docs/engines.md names, or a plug-in that knows "
            "the new one.",
            cause="The image was rebuilt on another vLLM.",
        ),
        "NotYetTold": Reason(
            "Not every ready engine has told yet, or none is ready.",
            "Wait until workers are ready; then see whether Redis (the chart's `redis.*`) answers.",
            cause="Workers are starting, or their heartbeats do not reach the operator.",
        ),
    }
)
