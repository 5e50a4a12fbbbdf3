"""KV events (``spec.engine.kvEvents``): where engines publish which blocks they keep, and sidecars listen.

Both are in one pod, and events have the token ids of prompts: they go over the loopback device alone. vLLM's publisher
(vllm/distributed/kv_events.py) and SGLang's (sglang/srt/disaggregation/kv_events.py) connect to an address without a
wildcard; there the sidecar listens. Each data-parallel rank has the port of the first one plus its number.
"""

import json

from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.engines.container import LOOPBACK, EngineRequest

KV_EVENTS_PORT = 5400
REPLAY_PORT = 5300
"""Where engines answer requests for events that were missed: 100 below, which the router knows."""


def events_port(spec: DisaggInferenceServiceSpec, request: EngineRequest) -> int:
    """Return the port of the first rank's events, 0 where none are published.

    Ranks on several nodes would connect to sidecars that serve no rounds, and those that do would know a part.
    """
    return KV_EVENTS_PORT if spec.engine.kv_events and not request.ranks_per_node else 0


def events_flag(spec: DisaggInferenceServiceSpec, request: EngineRequest, *, enabled: bool = True) -> list[str]:
    """Return the flag, if events are published; ``enabled``: whether the engine needs that stated besides."""
    port = events_port(spec, request)
    if not port:
        return []
    config = {
        **({"enable_kv_cache_events": True} if enabled else {}),
        "publisher": "zmq",
        "endpoint": f"tcp://{LOOPBACK}:{port}",
        "replay_endpoint": f"tcp://{LOOPBACK}:{REPLAY_PORT}",
    }
    return [f"--kv-events-config={json.dumps(config, separators=(',', ':'))}"]
