"""Refuse transfer parameters that kill, leak or misdirect a vLLM engine.

Its API server takes the object from anyone and believes it: ``do_remote_prefill`` without block ids kills the engine
core, an object with neither flag pins blocks for good, and ``remote_host`` makes the engine connect to that host. So
every object has to have one of the forms that a router writes, and where a proof is set, to come from it.
"""

import hmac
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

PROVEN: ContextVar[bool] = ContextVar("weft_kv_proven", default=False)
"""Whether the request being served carried the proof."""

_TEXTS = ("remote_engine_id", "remote_request_id", "remote_host")
_NUMBERS = ("remote_port", "tp_size", "remote_num_tokens")
_REMOTE = (*_TEXTS, "remote_port", "remote_block_ids")


class TransferRefusedError(ValueError):
    """Refuse a request; vLLM answers 400 with the message."""


class Guard:
    """The checks of one engine; ``proof`` is the word that requests with transfer parameters must carry, or nothing."""

    def __init__(self, proof: str = "") -> None:
        self._proof = proof.encode()

    @property
    def asks(self) -> bool:
        """Tell whether a proof is needed."""
        return bool(self._proof)

    def proves(self, given: bytes) -> bool:
        """Tell whether a request's header is the proof; always, where none is set."""
        return not self._proof or hmac.compare_digest(self._proof, given)

    def check(self, params: object, *, answers: int = 1) -> None:
        """Let a request's transfer parameters pass.

        Raises:
            TransferRefusedError: they do not come from the router, or are none of the forms that it writes.
        """
        if params is None:
            return
        if not PROVEN.get() and self.asks:
            raise TransferRefusedError("kv_transfer_params: only the router may send these; remove them")
        reason = wrong(params, answers=answers)
        if reason is not None:
            raise TransferRefusedError(f"kv_transfer_params: {reason}")


def wrong(params: object, *, answers: int = 1) -> str | None:
    """Return why vLLM must not get these parameters; None where they are sound."""
    if not isinstance(params, Mapping):
        return "an object is needed"
    if not params:
        return None
    if inner := [name for name in params if not isinstance(name, str) or name.startswith("_")]:
        return f"{inner[0]}: is the engine's own field; remove it"
    flags = [params.get(name, False) for name in ("do_remote_prefill", "do_remote_decode")]
    if flags not in ([True, False], [False, True]):
        return "exactly one of do_remote_prefill and do_remote_decode must be true"
    if answers != 1:
        return "one handle serves one answer; send n = 1"
    if flags[1] and all(params.get(name) is None for name in _REMOTE):
        return None
    return _wrong_remote(params)


def _wrong_remote(params: Mapping[str, Any]) -> str | None:
    for name in _TEXTS:
        value = params.get(name)
        if not isinstance(value, str) or not value:
            return f"{name}: a text is needed"
    for name in _NUMBERS:
        if not _whole(params.get(name), least=1):
            return f"{name}: a whole number of 1 or more is needed"
    if params["remote_port"] > 65535:
        return "remote_port: is above 65535"
    groups = params.get("remote_block_ids")
    if not isinstance(groups, list) or not any(groups) or not all(_ids(group) for group in groups):
        return "remote_block_ids: lists of block ids are needed, as [[1, 2]]"
    expiry = params.get("remote_blocks_expiry_time")
    if expiry is not None and (isinstance(expiry, bool) or not isinstance(expiry, int | float)):
        return "remote_blocks_expiry_time: a number or null is needed"
    for name in ("dcp_size", "pp_size"):
        if not _whole(params.get(name, 1), least=1):
            return f"{name}: a whole number of 1 or more is needed"
    if params.get("transfer_mode", "pull") != "pull":
        return "transfer_mode: only pull is known"
    return None


def _ids(group: object) -> bool:
    return isinstance(group, list) and all(_whole(number, least=0) for number in group)


def _whole(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
