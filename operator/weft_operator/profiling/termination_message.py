"""The termination message of a profiling pod: a fitted profile, compressed into the allowed 4,096 bytes.

It is how figures come back without any right of the pod's: the kubelet writes the words into the pod's status.
"""

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from typing import Any

MAX_BYTES = 4096
"""Longest termination message that the kubelet keeps."""
MOST_UNPACKED = 1 << 20
_MARK = "weft1:"


class MessageError(ValueError):
    """Report a message without a measurement, with its text."""


def packed(body: Mapping[str, Any]) -> str:
    """Return the message of a measurement.

    Raises:
        MessageError: it does not fit.
    """
    text = json.dumps(body, separators=(",", ":"), allow_nan=False)
    message = _MARK + base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    if len(message) > MAX_BYTES:
        raise MessageError(f"the measurement takes {len(message)} bytes and a pod may say {MAX_BYTES}; ask for fewer")
    return message


def unpacked(message: str) -> dict[str, Any]:
    """Return the measurement in a message.

    Raises:
        MessageError: it holds none; its words are what went wrong, as far as it has any.
    """
    if not message.startswith(_MARK):
        raise MessageError(message.strip()[:300] or "it ended without a word")
    try:
        raw = base64.b64decode(message.removeprefix(_MARK), validate=True)
        inflate = zlib.decompressobj()
        text = inflate.decompress(raw, MOST_UNPACKED)
        body = json.loads(text)
    except (binascii.Error, zlib.error, ValueError, RecursionError) as error:
        raise MessageError(f"its figures cannot be read ({type(error).__name__})") from error
    if not inflate.eof or not isinstance(body, dict) or not isinstance(body.get("profile"), dict):
        raise MessageError("its figures are not whole")
    return body
