"""Remember what an engine saw as a chain of digests, and tell whether a new prompt extends exactly that.

KV of an earlier round may be read only when the new prompt starts with the very sequence the engine
holds; a client that edits, compacts or strips its history must not get an answer from stale KV.

One hash runs over all messages of a chat, and its state after each is a link. So a link stands for everything up to
there, and two chats with the same link at the same place have been the same until then.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from weft_router.mypyc_compat import mypyc_attr
from weft_router.openai.body import CHAINED, Json
from weft_router.openai.digest import LONG, condensed
from weft_router.openai.inference import PREAMBLE, RENDERED, Inference, Kind

if TYPE_CHECKING:
    from hashlib import _Hash

LINK: Final = 32
"""Bytes of a link: SHA-256, which is the fastest here for short and long texts."""
_START: Final = hashlib.sha256()
_NO_PREAMBLE: Final = _START.digest()
_OWN_ITEM_FIELDS = ("id", "status", "annotations", "logprobs")
"""What an engine says about an item of a response besides its content; clients may send it back or not."""


@mypyc_attr(acyclic=True)
@dataclass(slots=True)
class PromptHistory:
    """What an engine saw: links of LINK bytes, one a message for chats, one over ``length`` units for text or ids.

    Nothing but ``state`` is changed once it is made.
    """

    kind: Kind
    links: bytes
    sizes: tuple[int, ...]
    length: int = 0
    ids: bool = False
    response: str = ""
    """The id of the response that ended a round of the Responses API."""
    state: "_Hash | None" = None
    """The hash after the last message of a request, until a reply is added to it."""


def history_of(inference: Inference) -> PromptHistory:
    """Return the prompt history of a request's own prompt; the version of an adapter is part of it."""
    if inference.kind == "text":
        return _flat(inference.prompt, inference.version)
    state = _START.copy()
    body, kind = inference.body, inference.kind
    before = _NO_PREAMBLE
    if inference.version:
        state.update(f"a{inference.version}\0".encode("utf-8", "surrogatepass"))
        before = state.digest()
    if inference.marks & RENDERED:
        preamble = {key: body[key] for key in PREAMBLE if body.get(key) is not None}
        if preamble:
            state.update(orjson.dumps(preamble, option=orjson.OPT_SORT_KEYS))
        before = state.digest()
    items = inference.items
    if len(items) == 1 and kind == "chat":  # many chats begin so, and no list has to be made for it
        size = _add(state, items[0])
        return PromptHistory(kind, before + state.digest(), (0, size), 0, False, "", state)
    links, sizes = [before], [0]
    for item in items:
        sizes.append(_add(state, _item(item) if kind == "responses" else item))
        links.append(state.digest())
    return PromptHistory(kind, b"".join(links), tuple(sizes), 0, False, "", state)


def with_reply(seen: PromptHistory, inference: Inference, reply: Json | str | Sequence[int]) -> PromptHistory:
    """Return the prompt history after the engine's reply: a chat message, a response, or the text or ids generated.

    Of a chat message that is text alone the text will do.
    """
    if seen.kind == "chat" and isinstance(reply, str):
        state = _state(seen, inference)
        sizes = seen.sizes
        sizes += (_add_text(state, "assistant", reply),)
        return PromptHistory("chat", seen.links + state.digest(), sizes)
    if isinstance(reply, dict):
        state = _state(seen, inference)
        items, response = [reply], ""
        if seen.kind == "responses":
            output, name = reply.get("output"), reply.get("id")
            items = [_item(item) for item in output] if isinstance(output, list) else []
            response = name if isinstance(name, str) else ""
        links, sizes = seen.links, seen.sizes
        for item in items:
            sizes += (_add(state, item),)
            links += state.digest()
        return PromptHistory(seen.kind, links, sizes, 0, False, response)
    prompt = inference.prompt
    if isinstance(prompt, str) and isinstance(reply, str):
        return _flat(prompt + reply, inference.version)
    if not isinstance(prompt, str) and not isinstance(reply, str):
        return _flat([*prompt, *reply], inference.version)
    return PromptHistory("text", b"", ())  # of nothing, which nothing extends


def _state(seen: PromptHistory, inference: Inference) -> "_Hash":
    """Return the hash after a request's last message without a copy; in the rare second use it is computed again."""
    state, seen.state = seen.state, None
    if state is None:
        state = history_of(inference).state or _START.copy()
    return state


def extends(inference: Inference, new: PromptHistory, seen: PromptHistory) -> bool:
    """Return whether the new prompt starts with everything the engine saw and goes on after it."""
    if new.kind != seen.kind or not seen.links:
        return False
    if seen.kind != "text":
        if inference.chained:
            return seen.response != "" and inference.body.get(CHAINED) == seen.response
        end = len(seen.links)
        return len(new.links) > end and new.links[end - LINK : end] == seen.links[-LINK:]
    prompt = inference.prompt
    if seen.ids == isinstance(prompt, str) or len(prompt) <= seen.length:
        return False
    return _flat(prompt[: seen.length], inference.version).links == seen.links


def shared_share(new: PromptHistory, seen: PromptHistory) -> float:
    """Return which share (by size) of what was seen the new chat still starts with: what a prefix cache can serve."""
    if new.kind != seen.kind or seen.kind == "text":
        return 0.0
    shared = 0
    for i, size in enumerate(seen.sizes):
        begin, end = i * LINK, (i + 1) * LINK
        if i >= len(new.sizes) or new.links[begin:end] != seen.links[begin:end]:
            break
        shared += size
    total = sum(seen.sizes)
    return shared / total if total else 0.0


def prefix_hashes(prompt_history: PromptHistory) -> list[str]:
    """Return the prefix hash after each message, so that a later request can be found by any prefix of it."""
    return [prefix_hash(prompt_history, i) for i in range(len(prompt_history.links) // LINK)]


def prefix_hash(prompt_history: PromptHistory, messages: int) -> str:
    """Return the prefix hash after so many messages."""
    return prompt_history.links[messages * LINK : (messages + 1) * LINK].hex()


def _flat(prompt: str | Sequence[int], version: str) -> PromptHistory:
    raw = prompt.encode("utf-8", "surrogatepass") if isinstance(prompt, str) else orjson.dumps(list(prompt))
    raw = raw if len(raw) < LONG else b"l" + condensed(raw)
    own = f"a{version}\0".encode("utf-8", "surrogatepass") if version else b""
    link = hashlib.sha256(own + raw).digest()
    return PromptHistory("text", link, (len(prompt),), length=len(prompt), ids=not isinstance(prompt, str))


def _add(state: "_Hash", message: Json) -> int:
    """Put a message into the hash, in a form that no other sequence of messages has; return its size.

    Most messages are a role and a text; those are not written as JSON. A role ends at a NUL, which it must not
    hold, and the text's length says where it ends; a long text is condensed first.
    """
    content = message.get("content")
    if len(message) != 2 or type(content) is not str:
        message = _normal(message)
        content = message["content"]
    role = message.get("role")
    if len(message) == 2 and type(content) is str and type(role) is str and "\0" not in role:
        return _add_text(state, role, content)
    raw = orjson.dumps(message, option=orjson.OPT_SORT_KEYS)
    state.update(b"j%d:%b" % (len(raw), raw))
    return _size(message)


def _add_text(state: "_Hash", role: str, content: str) -> int:
    """Put a message that is a role and a text into the hash; return its size."""
    size = len(content)
    if size < LONG:
        state.update(f"m{role}\0{size}:{content}".encode("utf-8", "surrogatepass"))
    else:
        state.update(f"l{role}\0{size}:".encode() + condensed(content.encode("utf-8", "surrogatepass")))
    return 1 + size


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


def _item(item: Json) -> Json:
    """Return an item of a response in the form that is the same for what an engine gave and a client sends back."""
    kept: Json = {key: value for key, value in item.items() if key not in _OWN_ITEM_FIELDS}
    if kept.get("type") == "message":
        del kept["type"]
    content = kept.get("content")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        if all(isinstance(text, str) for text in texts):
            kept["content"] = "".join(texts)  # type: ignore[arg-type]
    return kept


def _size(message: Json) -> int:
    content = message.get("content")
    size = len(content) if isinstance(content, str) else len(orjson.dumps(content)) if content else 0
    calls = message.get("tool_calls")
    return 1 + size + (len(orjson.dumps(calls)) if calls else 0)
