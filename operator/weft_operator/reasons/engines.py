"""The reasons of the conditions that heartbeats tell of the engines: EnginePlugin and KVPathsOpen."""

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

KV_PATHS_OPEN: Mapping[str, Reason] = MappingProxyType(
    {
        "SideChannelOpen": Reason(
            "From every ready worker's pod the side channel of the other role's engines is reached. Data ports are "
            "chosen by the kernel for each transfer and are not tried."
        ),
        "SideChannelClosed": Reason(
            "A worker's pod does not reach the port where engines meet. Decode workers send nothing to the prefill "
            "workers that they do not reach: those rounds are prefilled elsewhere, or where they decode.",
            "Let TCP port 5600 and the data ports 32768 to 60999 through between the nodes that the message names: "
            "see docs/network.md for the policies that Weft makes, and look for others, firewalls and cloud rules. "
            "It is tried again every second, and the paths are used again at once.",
            cause="A network policy, a node's firewall or a cloud's security group closes the port.",
        ),
        "NotYetTried": Reason(
            "Not every ready worker has tried all of the other role, or none is ready.",
            "Wait until workers are ready; then see whether Redis (the chart's `redis.*`) answers, and whether the "
            "sidecars are of this version (`weft upgrade NAME`).",
            cause="Workers are starting, their heartbeats do not reach the operator, or their sidecars are older.",
        ),
    }
)
