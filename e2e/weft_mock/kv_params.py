"""Read ``kv_transfer_params`` strictly and write the ones the engine answers with.

Stock vLLM 0.32 trusts this object: some wrong ones kill the engine, some leak its KV cache, some
give wrong answers. The mock engine refuses them and names what vLLM would have done, so that a
router's mistake is an error and a count instead of a surprise on real GPUs.

Accepted forms (flags are both needed, exactly as written):

* *export*: ``do_remote_decode: true, do_remote_prefill: false``, every ``remote_*`` null or absent.
  The blocks stay pinned under a lease and the reply carries a handle to them.
* *export with history*: the same flags and the handle of a decode engine: read that history first.
* *import*: ``do_remote_prefill: true, do_remote_decode: false`` and the handle of a prefill engine.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from weft_core.authority import authority

Role = Literal["prefill", "decode", "both"]
Consequence = Literal["would_crash", "would_leak", "would_ignore"]

_FLAGS = frozenset({"do_remote_prefill", "do_remote_decode"})
_REMOTE = frozenset({"remote_engine_id", "remote_block_ids", "remote_host", "remote_port", "remote_request_id"})
_KNOWN = (
    _FLAGS
    | _REMOTE
    | {
        "tp_size",
        "dcp_size",
        "pp_size",
        "remote_num_tokens",
        "remote_blocks_expiry_time",
        "transfer_mode",
        "remote_prefill_cached_tokens",
        "prompt_token_ids",
    }
)


@dataclass(frozen=True, slots=True)
class RemoteBlocks:
    """Where KV blocks wait to be read; ``expiry`` is in the seconds of the remote engine's clock."""

    engine_id: str
    request_id: str
    host: str
    port: int
    block_ids: tuple[int, ...]
    tokens: int
    degree: int
    expiry: float | None
    cached_tokens: int

    @property
    def address(self) -> str:
        """Return host and port as messages show them."""
        return authority(self.host, self.port)


@dataclass(frozen=True, slots=True)
class KvRequest:
    """What the router asks for: keep the blocks of this prompt, read those of another engine, or both."""

    form: Literal["export", "import"]
    remote: RemoteBlocks | None


class KvProtocolError(Exception):
    """Refuse transfer parameters; ``consequence`` says what vLLM 0.32 does with them."""

    def __init__(self, reason: str, consequence: Consequence, message: str) -> None:
        """Carry a stable reason for the ledger and a message that names the field."""
        super().__init__(message)
        self.reason = reason
        self.consequence: Consequence = consequence


def parse_kv_params(value: object, *, role: Role, bidirectional: bool, n: int) -> KvRequest | None:
    """Return what the parameters ask for; None when they are absent or empty.

    Raises:
        KvProtocolError: they are none of the forms of this module.
    """
    if value is None or value == {}:
        return None
    if not isinstance(value, Mapping):
        raise KvProtocolError("not_an_object", "would_ignore", "kv_transfer_params: an object is needed")
    keys = set(value)
    if keys == {"prompt_token_ids"}:
        return None
    if not keys & _FLAGS:
        raise KvProtocolError(
            "no_direction",
            "would_leak" if bidirectional else "would_ignore",
            "kv_transfer_params: neither do_remote_prefill nor do_remote_decode is there; "
            "a bidirectional vLLM pins the blocks of such a request for good",
        )
    unknown = keys - _KNOWN
    if unknown:
        raise KvProtocolError(
            "unknown_field", "would_ignore", f"kv_transfer_params.{min(map(str, unknown))}: unknown field; remove it"
        )
    importing, exporting = (_flag(value, name) for name in ("do_remote_prefill", "do_remote_decode"))
    if importing == exporting:
        raise KvProtocolError(
            "both_directions" if importing else "no_direction",
            "would_crash" if importing else "would_leak" if bidirectional else "would_ignore",
            "kv_transfer_params: exactly one of do_remote_prefill and do_remote_decode must be true",
        )
    if n != 1:
        raise KvProtocolError("several_answers", "would_leak", "n: one handle serves one answer; send n = 1")
    named = any(value.get(key) is not None for key in _REMOTE)
    if exporting:
        if not named:
            return KvRequest("export", None)
        if not bidirectional:
            raise KvProtocolError(
                "not_bidirectional",
                "would_ignore",
                "kv_transfer_params.remote_block_ids: this engine does not read history; start it with --bidirectional",
            )
        return KvRequest("export", read_remote(value))
    if role == "prefill":
        raise KvProtocolError(
            "wrong_role", "would_ignore", "kv_transfer_params.do_remote_prefill: a prefill engine does not decode"
        )
    return KvRequest("import", read_remote(value))


def remote_of_rejected(value: object) -> RemoteBlocks | None:
    """Return the blocks a rejected request would have read: they must be given back, nobody else will."""
    if not isinstance(value, Mapping) or value.get("do_remote_prefill") is not True:
        return None
    try:
        return read_remote(value)
    except KvProtocolError:
        return None


def _flag(value: Mapping[object, object], name: str) -> bool:
    flag = value.get(name, False)
    if not isinstance(flag, bool):
        raise KvProtocolError("wrong_type", "would_ignore", f"kv_transfer_params.{name}: true or false is needed")
    return flag


def read_remote(value: Mapping[object, object]) -> RemoteBlocks:
    """Return the blocks a handle names.

    Raises:
        KvProtocolError: a field is missing or wrong.
    """
    where = "kv_transfer_params"
    for name in sorted(_REMOTE):
        if value.get(name) is None:
            raise KvProtocolError(
                "incomplete_handle", "would_crash", f"{where}.{name}: missing; vLLM's scheduler dies of such a request"
            )
    groups = value["remote_block_ids"]
    if (
        not isinstance(groups, list)
        or len(groups) != 1
        or not isinstance(groups[0], list)
        or not groups[0]
        or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in groups[0])
    ):
        raise KvProtocolError(
            "wrong_type", "would_crash", f"{where}.remote_block_ids: one group of block ids is needed, as [[1, 2]]"
        )
    mode = value.get("transfer_mode", "pull")
    if mode != "pull":
        raise KvProtocolError("wrong_type", "would_crash", f"{where}.transfer_mode: {mode!r} is not pull")
    expiry = value.get("remote_blocks_expiry_time")
    if expiry is not None and (
        isinstance(expiry, bool) or not isinstance(expiry, int | float) or not math.isfinite(expiry)
    ):
        raise KvProtocolError(
            "wrong_type", "would_crash", f"{where}.remote_blocks_expiry_time: a number or null is needed"
        )
    return RemoteBlocks(
        engine_id=_text(value, "remote_engine_id"),
        request_id=_text(value, "remote_request_id"),
        host=_text(value, "remote_host"),
        port=_whole(value, "remote_port", 1),
        block_ids=tuple(groups[0]),
        tokens=_whole(value, "remote_num_tokens", 1),
        degree=_whole(value, "tp_size", 1),
        expiry=None if expiry is None else float(expiry),
        cached_tokens=_whole(value, "remote_prefill_cached_tokens", 0, default=0),
    )


def _text(value: Mapping[object, object], name: str) -> str:
    text = value.get(name)
    if not isinstance(text, str) or not text:
        raise KvProtocolError("wrong_type", "would_crash", f"kv_transfer_params.{name}: a text is needed")
    return text


def _whole(value: Mapping[object, object], name: str, least: int, *, default: int | None = None) -> int:
    number = value.get(name)
    if number is None and default is not None:
        return default
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise KvProtocolError(
            "wrong_type", "would_crash", f"kv_transfer_params.{name}: a whole number of {least} or more is needed"
        )
    return number


def handle_json(remote: RemoteBlocks, *, holder: Literal["prefill", "decode"]) -> dict[str, object]:
    """Return the object a reply carries: ready to be sent on, to a decode engine or back to a prefill engine."""
    return {
        "do_remote_prefill": holder == "prefill",
        "do_remote_decode": holder == "decode",
        "remote_block_ids": [list(remote.block_ids)],
        "remote_engine_id": remote.engine_id,
        "remote_request_id": remote.request_id,
        "remote_host": remote.host,
        "remote_port": remote.port,
        "tp_size": remote.degree,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": remote.tokens,
        "remote_blocks_expiry_time": remote.expiry,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": remote.cached_tokens,
    }
