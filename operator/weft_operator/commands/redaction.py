"""Take secrets, tokens and prompts out of what leaves the cluster: pure, and rather too much than too little."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from weft_operator.api.objects import Manifest

GONE = "(left out)"
SHORTEST = 8
"""Known secret values below so many characters are words, not secrets."""

_NAMES = r"(?:api[-_]?key|token|password|passwd|secret|authorization|cookie|credentials?|private[-_]?key)"
_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*",
        r"\b(?:hf|sk|pk|ghp|gho|ghs|glpat|xox[abp])[-_][\w-]{8,}",
        r"(?<=bearer )\s*[^\s\"',]+",
        r"(?<=basic )\s*[a-z0-9+/=]{8,}",
        r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)",
    )
)
_NAMED = re.compile(
    rf"(?P<name>(?:^|[^a-z])(?:x-weft-)?(?:[a-z]+[-_])*{_NAMES}\\?[\"']?\s*(?:[:=]|\s(?=[^\s:=]{{16,}}(?:\s|$)))\s*\\?[\"']?)"
    r"(?P<value>(?!\(left out\))(?:bearer |basic )?[^\s\"',;}\]\\]+)",
    re.IGNORECASE,
)
PROMPT_KEYS = frozenset(
    {
        *(
            "prompt",
            "prompts",
            "prompt_token_ids",
            "prompt_embeds",
            "messages",
            "message_content",
            "content",
            "contents",
        ),
        *("input", "inputs", "input_ids", "text", "output", "outputs", "output_text", "output_ids", "token_ids"),
        *("completion", "completions", "choices", "delta", "arguments", "tool_calls", "instructions", "documents"),
        *("reasoning", "reasoning_content", "query", "body", "request_body", "response", "response_body"),
    }
)
"""Keys of structured lines whose values may be what somebody wrote or was answered."""
_PROMPT = re.compile(
    r"(?<![\w-])[\"']?(?:prompt|prompts|messages|content|input|inputs|text|output|output_text|completion|instructions|"
    r"reasoning_content|prompt_token_ids|input_ids|output_ids|arguments|request body|body)[\"']?\s*[:=]\s*(?![\d.]+\b)",
    re.IGNORECASE,
)
_BEGINS = re.compile(
    r"^(?:\(?[\w.-]+(?: pid=\d+)?\)?:? )?[\[(]?"
    r"(?:\d{4}-\d\d-\d\d|(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL|FATAL)\b|[IWEF]\d{4} |\{)"
)
"""How vLLM, SGLang, TensorRT-LLM and Weft's own programs begin a line of their logs."""
_NOT_SHOWN = frozenset({"kubectl.kubernetes.io/last-applied-configuration"})
_OPEN_VARIABLES = ("WEFT_",)


def masked(text: str, known: Iterable[str] = ()) -> str:
    """Return a text without what looks like a secret, and without the ``known`` ones wherever they are."""
    for value in sorted({item for item in known if len(item) >= SHORTEST}, key=len, reverse=True):
        text = text.replace(value, GONE)
    for pattern in _PATTERNS:
        text = pattern.sub(GONE, text)
    return _NAMED.sub(lambda found: found["name"] + GONE, text)


def log_lines(lines: Iterable[str], known: Collection[str] = ()) -> Iterator[str]:
    """Yield the lines of a log without secrets and without what clients asked or engines answered.

    After a line that holds a prompt, those that do not begin as log lines do are taken as its continuation.
    """
    inside = False
    for line in lines:
        body = _object(line)
        if body is not None:
            inside = False
            yield masked(json.dumps(_without_prompts(body), ensure_ascii=False), known)
            continue
        if inside and not _BEGINS.match(line):
            continue
        found = _PROMPT.search(line)
        inside = found is not None
        yield masked(line if found is None else f"{line[: found.end()].rstrip()} {GONE}", known)


def object_of(manifest: Manifest, known: Iterable[str] = ()) -> Manifest:
    """Return an object without managed fields, values of variables, what was last applied, and secrets.

    Raises:
        ValueError: it is a Secret: those stay in the cluster.
    """
    if manifest.get("kind") == "Secret":
        raise ValueError("Secrets are not shown")
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "managedFields"}
    if metadata.get("annotations"):
        metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if k not in _NOT_SHOWN}
    cleaned: Manifest = _cleaned({**manifest, "metadata": metadata}, tuple(known))
    return cleaned


def _cleaned(value: Any, known: tuple[str, ...], key: str = "") -> Any:
    if isinstance(value, Mapping):
        if key == "env" and "name" not in value:
            return {name: _variable(name, item, known) for name, item in value.items()}
        return {str(name): _cleaned(item, known, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        if key == "env":
            return [_named_variable(item, known) for item in value]
        return [_cleaned(item, known) for item in _arguments(value)]
    if isinstance(value, str):
        return _embedded(value, known)
    return value


def _embedded(text: str, known: tuple[str, ...]) -> str:
    """Return a text without secrets; what is JSON is cleaned as such, so that variables in it are, too."""
    stripped = text.lstrip()
    if stripped.startswith(("{", "[")):
        try:
            body = json.loads(text)
        except ValueError:
            return masked(text, known)
        return json.dumps(_cleaned(body, known), indent=None if "\n" not in text else 2, ensure_ascii=False)
    return masked(text, known)


def _named_variable(item: Any, known: tuple[str, ...]) -> Any:
    if not isinstance(item, Mapping) or "value" not in item:
        return _cleaned(item, known)
    return {**item, "value": _variable(str(item.get("name", "")), item["value"], known)}


def _variable(name: str, value: Any, known: tuple[str, ...]) -> Any:
    shown = name.startswith(_OPEN_VARIABLES) and not re.search(_NAMES, name, re.IGNORECASE)
    return masked(value, known) if shown and isinstance(value, str) else GONE


def _arguments(words: list[Any]) -> list[Any]:
    """Return a list without the word after a flag that names a secret: --api-key VALUE."""
    hidden = False
    found = []
    for word in words:
        found.append(GONE if hidden and isinstance(word, str) else word)
        hidden = isinstance(word, str) and re.fullmatch(rf"--?[\w-]*{_NAMES}[\w-]*", word, re.IGNORECASE) is not None
    return found


def _without_prompts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: GONE
            if str(key).lower() in PROMPT_KEYS and not isinstance(item, int | float)
            else _without_prompts(item)
            for key, item in value.items()
        }
    return [_without_prompts(item) for item in value] if isinstance(value, list) else value


def _object(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        body = json.loads(line)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None
