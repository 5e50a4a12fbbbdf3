"""Say which streams fail over to another engine after theirs died, and how (vLLM 0.32, found by running it).

From the same token ids a greedy engine continues exactly, and sampling with the right distribution. Penalties count
generated tokens and not prompt tokens, and a generated token becomes a prompt token when another engine continues;
grammars and the parsers of tool calls and reasoning start again; stop texts make the text lag behind the ids. Such a
stream, and any of an engine that cannot continue from ids, is generated again from its start if it is greedy; the
router sends what the client does not have (``openai.regeneration``).
"""

from dataclasses import dataclass
from typing import Literal

from weft_router.engines.adapter import Adapter
from weft_router.openai.body import Json
from weft_router.openai.inference import Inference
from weft_router.openai.reply import Reply

_NEUTRAL = {
    "presence_penalty": (None, 0, 0.0),
    "frequency_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
}
_LOGPROBS = ("logprobs", "top_logprobs", "prompt_logprobs")
_STRUCTURES = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structural_tag",
)
_LAGGING = ("stop", "bad_words")
_ELSEWHERE = ("echo", "use_beam_search", "continue_final_message", "suffix")


ResumeMethod = Literal["exact", "sampled", "regenerate", "no"]


@dataclass(frozen=True, slots=True)
class Resumable:
    """How a stream fails over: continued exactly or with the right distribution, generated again, or not and why."""

    how: ResumeMethod
    reason: str = ""


_NO_STREAM, _EXACT, _SAMPLED = Resumable("no", "not-a-plain-stream"), Resumable("exact"), Resumable("sampled")
_REGENERATED = frozenset({"media", "penalties", "tools", "structure", "stop-texts", "prompt"})
"""Why a stream cannot be continued from ids, although it can be generated again."""
_JUDGED = frozenset({*_NEUTRAL, *_LOGPROBS, *_STRUCTURES, *_LAGGING, *_ELSEWHERE, "tools", "response_format"})


def resume_kinds(adapter: Adapter) -> frozenset[str]:
    """Return how streams fail over with this engine and service."""
    if adapter.traits.resume == "off":
        return frozenset()
    if not adapter.can.resume:
        return frozenset({"regenerate"})
    return frozenset({"exact", "regenerate"} | ({"sampled"} if adapter.traits.resume == "sampled" else set()))


def resume_method(inference: Inference, kinds: frozenset[str]) -> ResumeMethod:
    """Return how a stream fails over, if it does so in one of these ways."""
    how = resumable(inference).how
    if how in kinds:
        return how
    return "regenerate" if how == "exact" and "regenerate" in kinds and not inference.wants_ids else "no"


def greedy(body: Json) -> bool:
    """Return whether a request asks for the most likely token each time."""
    temperature = body.get("temperature")
    return temperature is not None and temperature == 0


def same_first_token(inference: Inference) -> bool:
    """Return whether a prefill and a decode engine find the same first token, and show it in the same words."""
    body = inference.body
    return (
        inference.stream
        and inference.kind != "responses"
        and inference.n == 1
        and inference.max_tokens != 1
        and greedy(body)
        and not any(body.get(name) for name in ("logprobs", "top_logprobs", "tools", "echo"))
    )


def resumable(inference: Inference) -> Resumable:
    """Judge a request before it starts: only a stream that is continued needs token ids."""
    found = _continuable(inference)
    if found.reason in _REGENERATED and greedy(inference.body) and not inference.wants_ids:
        return Resumable("regenerate", found.reason)
    return found


def _continuable(inference: Inference) -> Resumable:
    body = inference.body
    if not inference.stream or inference.kind == "responses":
        return _NO_STREAM
    if inference.n == 1 and not inference.media and _JUDGED.isdisjoint(body):
        return _EXACT if greedy(body) else _SAMPLED
    if inference.n != 1:
        return Resumable("no", "several-answers")
    if any(body.get(name) is not None and body[name] is not False for name in _LOGPROBS):
        return Resumable("no", "logprobs")
    if inference.media:
        return Resumable("no", "media")
    if any(body.get(name) not in neutral for name, neutral in _NEUTRAL.items()):
        return Resumable("no", "penalties")
    if body.get("tools") and body.get("tool_choice") != "none":
        return Resumable("no", "tools")
    wanted = body.get("response_format")
    plain = wanted is None or (isinstance(wanted, dict) and wanted.get("type") == "text")
    if not plain or any(body.get(name) is not None for name in _STRUCTURES):
        return Resumable("no", "structure")
    if any(body.get(name) for name in _LAGGING):
        return Resumable("no", "stop-texts")
    if any(body.get(name) for name in _ELSEWHERE):
        return Resumable("no", "prompt")
    return _EXACT if greedy(body) else _SAMPLED


def resume_obstacle(inference: Inference, reply: Reply) -> str | None:
    """Return why a stream that broke after this reply cannot be continued from ids; None when it can."""
    if reply.finish_reason is not None:
        return "finished"
    if reply.error:
        return "engine-error"
    if reply.reasoning or reply.tool_calls:
        return "structure"
    if not reply.prompt_ids or reply.output_ids is None:
        return "no-ids"
    if inference.wants_ids and reply.shown != len(reply.output_ids):
        return "ids-ahead"
    if inference.max_tokens is not None and reply.shown >= inference.max_tokens:
        return "finished"
    return None
