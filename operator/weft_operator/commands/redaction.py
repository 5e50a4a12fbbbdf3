"""Redact secrets, tokens and prompts in what leaves the cluster; in doubt, redact. Pure."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from weft_operator.api.objects import Manifest

REDACTED = "(left out)"
MIN_SECRET_LENGTH = 8
"""Shorter values of Secrets are not looked for, because they could be ordinary words."""

_SENSITIVE_NAMES = r"(?:api[-_]?key|token|password|passwd|secret|authorization|cookie|credentials?|private[-_]?key)"
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
_NAMED_SECRET = re.compile(
    rf"(?P<name>(?:^|[^a-z])(?:x-weft-)?(?:[a-z]+[-_])*{_SENSITIVE_NAMES}\\?[\"']?\s*(?:[:=]|\s(?=[^\s:=]{{16,}}(?:\s|$)))\s*\\?[\"']?)"
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
"""Keys of structured log lines whose values may be prompts or answers."""
_PROMPT = re.compile(
    r"(?<![\w-])[\"']?(?:prompt|prompts|messages|content|input|inputs|text|output|output_text|completion|instructions|"
    r"reasoning_content|prompt_token_ids|input_ids|output_ids|arguments|request body|body)[\"']?\s*[:=]\s*(?![\d.]+\b)",
    re.IGNORECASE,
)
_LOG_LINE_START = re.compile(
    r"^(?:\(?[\w.-]+(?: pid=\d+)?\)?:? )?[\[(]?"
    r"(?:\d{4}-\d\d-\d\d|(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL|FATAL)\b|[IWEF]\d{4} |\{)"
)
"""The beginning of a log line of vLLM, SGLang, TensorRT-LLM and Weft's own programs."""
_REMOVED_ANNOTATIONS = frozenset({"kubectl.kubernetes.io/last-applied-configuration"})
_SHOWN_VARIABLE_PREFIXES = ("WEFT_",)


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return a text with everything redacted that looks like a secret, or is one of the ``known`` ones."""
    for value in sorted({item for item in known if len(item) >= MIN_SECRET_LENGTH}, key=len, reverse=True):
        text = text.replace(value, REDACTED)
    for pattern in _PATTERNS:
        text = pattern.sub(REDACTED, text)
    return _NAMED_SECRET.sub(lambda found: found["name"] + REDACTED, text)


def redact_log(lines: Iterable[str], known: Collection[str] = ()) -> Iterator[str]:
    """Yield the lines of a log with secrets, prompts and answers redacted.

    Lines after one with a prompt are its continuation, and dropped, until one begins like a log line.
    """
    in_prompt = False
    for line in lines:
        body = _json_object(line)
        if body is not None:
            in_prompt = False
            yield redact(json.dumps(_without_prompts(body), ensure_ascii=False), known)
            continue
        if in_prompt and not _LOG_LINE_START.match(line):
            continue
        found = _PROMPT.search(line)
        in_prompt = found is not None
        yield redact(line if found is None else f"{line[: found.end()].rstrip()} {REDACTED}", known)


def redact_object(manifest: Manifest, known: Iterable[str] = ()) -> Manifest:
    """Return an object without managed fields, values of variables, its last applied configuration, and secrets.

    Raises:
        ValueError: it is a Secret, which never leaves the cluster.
    """
    if manifest.get("kind") == "Secret":
        raise ValueError("Secrets are not shown")
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "managedFields"}
    if metadata.get("annotations"):
        metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if k not in _REMOVED_ANNOTATIONS}
    cleaned: Manifest = _redact_value({**manifest, "metadata": metadata}, tuple(known))
    return cleaned


def _redact_value(value: Any, known: tuple[str, ...], key: str = "") -> Any:
    if isinstance(value, Mapping):
        if key == "env" and "name" not in value:
            return {name: _redact_variable(name, item, known) for name, item in value.items()}
        return {str(name): _redact_value(item, known, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        if key == "env":
            return [_redact_env_entry(item, known) for item in value]
        return [_redact_value(item, known) for item in _redact_arguments(value)]
    if isinstance(value, str):
        return _redact_text(value, known)
    return value


def _redact_text(text: str, known: tuple[str, ...]) -> str:
    """Return a text with secrets redacted; JSON is redacted by its structure, so that variables in it are, too."""
    stripped = text.lstrip()
    if stripped.startswith(("{", "[")):
        try:
            body = json.loads(text)
        except ValueError:
            return redact(text, known)
        return json.dumps(_redact_value(body, known), indent=None if "\n" not in text else 2, ensure_ascii=False)
    return redact(text, known)


def _redact_env_entry(item: Any, known: tuple[str, ...]) -> Any:
    if not isinstance(item, Mapping) or "value" not in item:
        return _redact_value(item, known)
    return {**item, "value": _redact_variable(str(item.get("name", "")), item["value"], known)}


def _redact_variable(name: str, value: Any, known: tuple[str, ...]) -> Any:
    shown = name.startswith(_SHOWN_VARIABLE_PREFIXES) and not re.search(_SENSITIVE_NAMES, name, re.IGNORECASE)
    return redact(value, known) if shown and isinstance(value, str) else REDACTED


def _redact_arguments(arguments: list[Any]) -> list[Any]:
    """Return a command line with the argument redacted that follows a flag such as --api-key."""
    is_secret = False
    found = []
    for word in arguments:
        found.append(REDACTED if is_secret and isinstance(word, str) else word)
        is_secret = (
            isinstance(word, str)
            and re.fullmatch(rf"--?[\w-]*{_SENSITIVE_NAMES}[\w-]*", word, re.IGNORECASE) is not None
        )
    return found


def _without_prompts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: REDACTED
            if str(key).lower() in PROMPT_KEYS and not isinstance(item, int | float)
            else _without_prompts(item)
            for key, item in value.items()
        }
    return [_without_prompts(item) for item in value] if isinstance(value, list) else value


def _json_object(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        body = json.loads(line)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None
