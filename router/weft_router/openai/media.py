"""Say which media a request may bring: inside itself, and from hosts that the service names.

An engine fetches what a part of a message names, from inside the cluster: nobody outside may choose what it asks there.
What a part means is not judged by its type alone, for vLLM takes any of these fields where a part has a ``uuid``.
"""

import re
from collections.abc import Sequence
from typing import Final

from weft_router.errors import InvalidRequestError
from weft_router.openai.body import Json
from weft_router.openai.bounds import RequestLimits

COMPUTED: Final = frozenset({"image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "image_pil"})
"""Types of parts, and their fields, that are unpacked in place of media."""
LOADED: Final = frozenset(
    {
        "image_url", "video_url", "audio_url", "file_url", "input_image", "input_video", "input_audio", "input_file",
        "image", "video", "audio", "file",
    }
)  # fmt: skip
"""Fields of parts and items whose content an engine loads."""
_ADDRESSES: Final = frozenset({"url", "uri", "path", *LOADED})
"""Fields whose text is an address, with a scheme or without one: engines take a bare path for a file of theirs."""
_DATA: Final = frozenset({"data", "file_data"})
"""Fields whose text is the media itself, in base64; some engines take an address there, too."""
_WORDS: Final = frozenset({"type", "format", "detail", "filename", "uuid", "id", "file_id", "mime_type"})
_SCHEME: Final = re.compile(r"\s*[a-zA-Z][a-zA-Z0-9+.\-]*:")
_URL: Final = re.compile(
    r"(https?)://([a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)(?::([0-9]{1,5}))?(?:[/?#][!-~]*)?",
    re.IGNORECASE | re.ASCII,
)
"""A URL that every parser reads alike: no user, no backslash, no blank, nothing but ASCII."""
_BASE64: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PORTS: Final = {"https": "443", "http": "80"}


def check_messages(messages: Sequence[Json], allowed: RequestLimits) -> None:
    """Refuse messages with such fields, or with parts that hold such fields anywhere, as results of tools do."""
    for i, message in enumerate(messages):
        content = message.get("content")
        if len(message) == 2 and isinstance(content, str):
            continue  # a role and a text
        check_part(message, f"messages[{i}]", allowed)
        if isinstance(content, list):
            for j, part in enumerate(content):
                if len(part) != 2 or "text" not in part:
                    check_item(part, f"messages[{i}].content[{j}]", allowed)


def check_part(part: Json, where: str, allowed: RequestLimits) -> None:
    """Refuse a message, or a part of one, that has an engine fetch or unpack what the service does not allow.

    Raises:
        InvalidRequestError: ``param`` is the place of the field.
    """
    kind = part.get("type")
    if isinstance(kind, str) and kind in COMPUTED:
        _refuse_computed(kind, f"{where}.type", allowed)
    for name, value in part.items():
        if name in COMPUTED:
            _refuse_computed(name, f"{where}.{name}", allowed)
        elif name in LOADED or name == "file_data":
            _check(value, name, f"{where}.{name}", allowed)


def check_item(item: object, where: str, allowed: RequestLimits) -> None:
    """Refuse a part, or an item of the Responses API, that holds such a part anywhere, as outputs of tools do."""
    if isinstance(item, dict):
        check_part(item, where, allowed)
        for name, value in item.items():
            if isinstance(value, dict | list) and name not in LOADED:
                check_item(value, f"{where}.{name}", allowed)
    elif isinstance(item, list):
        for i, one in enumerate(item):
            check_item(one, f"{where}[{i}]", allowed)


def _refuse_computed(name: str, where: str, allowed: RequestLimits) -> None:
    if allowed.fields is not None and name not in allowed.fields:
        raise InvalidRequestError(
            f"{where}: {name} is unpacked and computed with by the engine; send the media itself, or ask whoever runs "
            f"this service to allow {name!r} in spec.coordinator.requests.allowedFields",
            param=where,
            code="unsupported_parameter",
        )


def _check(value: object, name: str, where: str, allowed: RequestLimits) -> None:
    if isinstance(value, str):
        if name in _DATA:
            check_data(value, where, allowed)
        elif name not in _WORDS and (name in _ADDRESSES or _SCHEME.match(value)):
            check_url(value, where, allowed)
    elif isinstance(value, dict):
        for inner, one in value.items():
            _check(one, inner, f"{where}.{inner}", allowed)
    elif isinstance(value, list):
        for i, one in enumerate(value):
            _check(one, name, f"{where}[{i}]", allowed)


def check_data(text: str, where: str, allowed: RequestLimits) -> None:
    """Refuse what is neither base64 nor a data: URL."""
    if text.startswith("data:") or allowed.fields is None:
        return
    if len(text) % 4 or not text.isascii() or text.rstrip("=").encode().translate(None, _BASE64):
        _refuse(where, "must be the media itself, in base64 or as a data: URL")


def check_url(url: str, where: str, allowed: RequestLimits) -> None:
    """Refuse an address that an engine may not load from; those of data are always fine."""
    if url.startswith("data:") or not url or allowed.fields is None:
        return
    found = _URL.fullmatch(url)
    if found is None:
        raise InvalidRequestError(
            f"{where}: must be a data: URL{_or_hosts(allowed)}, with the media in it", param=where, code="invalid_url"
        )
    scheme, host, port = found[1].lower(), found[2].lower(), found[3]
    if scheme == "http" and not allowed.media_http:
        _refuse(where, "must begin with data: or https://")
    place = host if port is None or port == _PORTS.get(scheme) else f"{host}:{port}"
    if place not in allowed.media_hosts and not place.endswith(allowed.media_suffixes):
        _refuse(where, f"this service loads nothing from {place[:128]!r}; send the media itself in a data: URL")


def _or_hosts(allowed: RequestLimits) -> str:
    return " or one of a host that this service names" if allowed.media_hosts or allowed.media_suffixes else ""


def _refuse(where: str, why: str) -> None:
    raise InvalidRequestError(f"{where}: {why}", param=where, code="invalid_url")
