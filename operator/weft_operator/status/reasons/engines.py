"""The reasons of the conditions about engines, from heartbeats: EnginePlugin, KVTransportVerified, AdaptersLoaded."""

from collections.abc import Mapping
from types import MappingProxyType

from weft_operator.status.reasons.reason import Reason

ADAPTERS_LOADED: Mapping[str, Reason] = MappingProxyType(
    {
        "AllLoaded": Reason("Every ready engine has every adapter of `spec.model.adapters`."),
        "LoadFailed": Reason(
            "An engine could not load an adapter. The message has its words. Requests for the adapter go to the "
            "workers that have it, and get 503 where none has; all others are served. It is tried again, at last once "
            "a minute.",
            "Read the engine's words: a rank above `spec.model.maxAdapterRank`, a folder that is not on the claim, or "
            "a repository that needs a token or cannot be reached. Correct the adapter or remove it.",
            cause="The adapter is not where the spec says, or does not fit the model or the engine's limits.",
        ),
        "NotYetLoaded": Reason(
            "Not every ready engine has every adapter yet, or none is ready. Requests for an adapter go to the workers "
            "that have it.",
            "Wait: pods see another list of adapters within about a minute, and repositories have to be downloaded. "
            "Then see whether Redis (the chart's `redis.*`) answers.",
            cause="The list was changed a moment ago, workers are starting, or their heartbeats do not reach the "
            "operator.",
        ),
    }
)

ENGINE_PLUGIN: Mapping[str, Reason] = MappingProxyType(
    {
        "PluginActive": Reason(
            "Every ready engine has the plug-in: streams carry KV handles, and engines take transfer parameters from "
            "their sidecars only."
        ),
        "PluginAbsent": Reason(
            "An engine answers without the plug-in. It serves, but later rounds of streamed sessions are prefilled "
            "where they decode, and the engine itself does not check transfer parameters.",
            "Set `spec.engine.image` to an image built from `images/vllm/Dockerfile`; if `spec.engine.env` sets "
            "`VLLM_PLUGINS`, add `weft_kv` to it; or remove `spec.engine.plugin`.",
            cause="The image has no plug-in, or `VLLM_PLUGINS` does not name it.",
        ),
        "PluginOff": Reason(
            "An engine has the plug-in with a version of vLLM that it was not tested with, so it is disabled there.",
            "Set `spec.engine.image` to an image with the version that docs/engines.md names, or with a plug-in for "
            "the new one.",
            cause="The image was rebuilt on another vLLM.",
        ),
        "NotYetReported": Reason(
            "Not every ready engine has reported yet, or none is ready.",
            "Wait until workers are ready; then see whether Redis (the chart's `redis.*`) answers.",
            cause="Workers are starting, or their heartbeats do not reach the operator.",
        ),
    }
)

KV_TRANSPORT_VERIFIED: Mapping[str, Reason] = MappingProxyType(
    {
        "TransportVerified": Reason(
            "The engine of every ready decode worker has read KV from that of every prefill worker. The message has "
            "the transport (tcp, rdma, or direct: neither the pod's network nor its RDMA devices carried it) and the "
            "slowest pair's figures."
        ),
        "SideChannelClosed": Reason(
            "A worker's pod does not reach the port of the engines' side channel. Decode workers send nothing to the "
            "prefill workers that they do not reach: other workers prefill those rounds, or the decode worker itself.",
            "Let TCP port 5600 and the data ports 32768 to 60999 through between the nodes that the message names: "
            "see docs/network.md for the policies that Weft makes, and look for others, firewalls and cloud rules. "
            "It is checked every second, and the paths are used again at once.",
            cause="A network policy, a node's firewall or a cloud's security group closes the port.",
        ),
        "DataPortsClosed": Reason(
            "Engines connect, but connections for the KV itself are not answered, so reads hang. Decode workers send "
            "nothing to these prefill workers: other workers prefill those rounds, or the decode worker itself.",
            "Let TCP ports 32768 to 60999, of which the kernel chooses, through between the nodes that the message "
            "names; the sidecar's log has the port (`kv_port_closed`). It is checked again every 30 s, or every "
            "`spec.engine.kvTransfer.proofSeconds`.",
            cause="A firewall or a policy allows known ports only.",
        ),
        "TransferFailed": Reason(
            "Engines connect, but a read fails, has no effect, or hangs for an unknown reason. Decode workers send "
            "nothing to these prefill workers.",
            "See the logs of both engines for NIXL. They refuse each other unless vLLM's version, the model, dtype, "
            "block size and attention backend agree: look at `spec.podTemplates` and `spec.engine.args`, and at data "
            "ports that are refused rather than dropped. It is checked again every 30 s, or every "
            "`spec.engine.kvTransfer.proofSeconds`.",
            cause="Engines that do not match, a refused data port, or a device that cannot be used.",
        ),
        "WrongTransport": Reason(
            "The pools have RDMA devices, but KV came over TCP, which is many times slower than plans assume. "
            "Decode workers send nothing to these prefill workers.",
            "See that `spec.engine.env` does not keep UCX from them (`UCX_TLS`, `UCX_NET_DEVICES`), that the engine's "
            "image has the libraries, and that both pods got a device. Or remove `rdma` from the pools to use TCP.",
            cause="UCX fell back to TCP: no device in the pod, no right to lock memory, or a variable that forbids it.",
        ),
        "NotYetTried": Reason(
            "Not every ready worker has checked the side channel of all of the other role, or none is ready.",
            "Wait until workers are ready; then see whether Redis (the chart's `redis.*`) answers, and whether the "
            "sidecars are of this version (`weft rollout upgrade NAME`).",
            cause="Workers are starting, their heartbeats do not reach the operator, or their sidecars are older.",
        ),
        "NotYetProven": Reason(
            "All side channels are reached, and KV was not transferred between all pairs yet: each takes some seconds "
            "after a start.",
            "Wait. If it stays so, engines are too busy to answer a few tokens in 20 s, or sidecars are older "
            "(`weft rollout upgrade NAME`); `weft_router_kv_proofs_total` counts the results of proofs.",
            cause="Workers are starting, or engines have more to do than they can.",
        ),
    }
)
