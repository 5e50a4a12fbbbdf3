"""Read ``--kv-events-config`` as strictly as a mistake in it deserves: vLLM would start without what was meant."""

import json
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

_FIELDS: Final = frozenset(
    {"enable_kv_cache_events", "publisher", "endpoint", "replay_endpoint", "buffer_steps", "hwm", "topic"}
)


@dataclass(frozen=True, slots=True)
class KvEventsConfig:
    """Where the first rank connects to, and where it answers requests for earlier batches; others have later ports."""

    port: int
    replay_port: int
    buffer_steps: int = 10_000
    topic: str = ""


def events_config(text: str) -> KvEventsConfig:
    """Return what ``--kv-events-config`` says, as far as this engine can do it.

    Raises:
        ValueError: it is no JSON object, has unknown fields, or events would not be published to the loopback device.
    """
    flag = "--kv-events-config"
    try:
        body = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{flag}: no JSON: {error}") from error
    if not isinstance(body, dict) or body.keys() - _FIELDS:
        raise ValueError(f"{flag}: an object with {', '.join(sorted(_FIELDS))} is needed")
    if body.get("enable_kv_cache_events") is not True or body.get("publisher", "zmq") != "zmq":
        raise ValueError(
            f"{flag}: enable_kv_cache_events must be true and publisher zmq; remove the flag for no events"
        )
    buffer_steps, topic = body.get("buffer_steps", 10_000), body.get("topic", "")
    if not isinstance(buffer_steps, int) or buffer_steps < 1 or not isinstance(topic, str):
        raise ValueError(f"{flag}: buffer_steps must be a number above 0, topic a text")
    return KvEventsConfig(_port(flag, body, "endpoint"), _port(flag, body, "replay_endpoint"), buffer_steps, topic)


def _port(flag: str, body: dict[str, Any], name: str) -> int:
    address = body.get(name)
    parts = urlsplit(address) if isinstance(address, str) else None
    if parts is None or parts.scheme != "tcp" or parts.hostname != "127.0.0.1" or not parts.port:
        raise ValueError(f"{flag}: {name}: give one such as tcp://127.0.0.1:5557; events have the prompts' token ids")
    return parts.port
