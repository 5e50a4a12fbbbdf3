"""Remember what an engine saw as a chain of digests, and tell whether a new prompt extends exactly that.

KV of an earlier round may be read only when the new prompt starts with the very sequence the engine
holds; a client that edits, compacts or strips its history must not get an answer from stale KV.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from weft_router.api.body import Json
from weft_router.api.inference import Inference, Kind

_DIGEST = 16
_PREAMBLE = ("tools", "chat_template", "chat_template_kwargs", "documents", "add_generation_prompt", "response_format")
"""Fields besides the messages that templates render into the prompt."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """Digests of what an engine saw: one link a message for chats, one link over ``length`` units for text or ids."""

    kind: Kind
    links: tuple[bytes, ...]
    sizes: tuple[int, ...]
    length: int = 0
    ids: bool = False


def of_request(inference: Inference) -> Transcript:
    """Return the transcript of a request's own prompt."""
    if inference.kind == "chat":
        preamble = {key: inference.body[key] for key in _PREAMBLE if inference.body.get(key) is not None}
        links = (_digest(preamble), *(_digest(_normal(message)) for message in inference.messages))
        return Transcript("chat", links, (0, *(_size(message) for message in inference.messages)))
    return _flat(inference.prompt)


def with_reply(seen: Transcript, inference: Inference, reply: Json | str | Sequence[int]) -> Transcript:
    """Return the transcript after the engine's reply: a chat message, or the text or token ids that were generated."""
    if isinstance(reply, dict):
        return Transcript(
            "chat", (*seen.links, _digest(_normal(reply))), (*seen.sizes, _size(reply)), length=0, ids=False
        )
    prompt = inference.prompt
    if isinstance(prompt, str) and isinstance(reply, str):
        return _flat(prompt + reply)
    if not isinstance(prompt, str) and not isinstance(reply, str):
        return _flat([*prompt, *reply])
    return Transcript("text", (), ())


def extends(inference: Inference, new: Transcript, seen: Transcript) -> bool:
    """Tell whether the new prompt starts with everything the engine saw and goes on after it."""
    if new.kind != seen.kind or not seen.links:
        return False
    if seen.kind == "chat":
        return len(new.links) > len(seen.links) and new.links[: len(seen.links)] == seen.links
    prompt = inference.prompt
    if seen.ids == isinstance(prompt, str) or len(prompt) <= seen.length:
        return False
    return _flat(prompt[: seen.length]).links == seen.links


def shared_share(new: Transcript, seen: Transcript) -> float:
    """Return which share (by size) of what was seen the new chat still starts with: what a prefix cache can serve."""
    if new.kind != "chat" or seen.kind != "chat":
        return 0.0
    shared = 0
    for mine, theirs, size in zip(new.links, seen.links, seen.sizes, strict=False):
        if mine != theirs:
            break
        shared += size
    total = sum(seen.sizes)
    return shared / total if total else 0.0


def heads(transcript: Transcript) -> list[str]:
    """Return the chained prefix hash after each message, so that a later request can be found by any prefix of it."""
    chained = b""
    found = []
    for link in transcript.links:
        chained = hashlib.blake2b(chained + link, digest_size=_DIGEST).digest()
        found.append(chained.hex())
    return found


def _flat(prompt: str | Sequence[int]) -> Transcript:
    raw = prompt.encode("utf-8", "surrogatepass") if isinstance(prompt, str) else orjson.dumps(list(prompt))
    link = hashlib.blake2b(raw, digest_size=_DIGEST).digest()
    return Transcript("text", (link,), (len(prompt),), length=len(prompt), ids=not isinstance(prompt, str))


def _normal(message: Json) -> Json:
    """Return a message without the parts that say nothing: nulls, empty lists, a stream's call indices."""
    kept: Json = {key: value for key, value in message.items() if value is not None and value != []}
    kept["content"] = message.get("content") or ""
    calls = kept.get("tool_calls")
    if isinstance(calls, list):
        kept["tool_calls"] = [
            {key: value for key, value in call.items() if key != "index"} if isinstance(call, dict) else call
            for call in calls
        ]
    return kept


def _size(message: Json) -> int:
    content = message.get("content")
    size = len(content) if isinstance(content, str) else len(orjson.dumps(content)) if content else 0
    calls = message.get("tool_calls")
    return 1 + size + (len(orjson.dumps(calls)) if calls else 0)


def _digest(value: object) -> bytes:
    return hashlib.blake2b(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=_DIGEST).digest()
