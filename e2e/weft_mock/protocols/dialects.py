"""Say how the replies of each engine differ where clients and routers see it."""

from collections.abc import Mapping
from dataclasses import dataclass

from weft_mock.config import Protocol


@dataclass(frozen=True, slots=True)
class Dialect:
    """One engine's habits.

    * ``stop_key``: the choice's field that names the stop string or id; ``always`` there, or with the last token only.
    * ``handles``: whole replies have ``kv_transfer_params``.
    * ``cache_report``: usage tells how much of the prompt was cached.
    * ``named_by_caller``: the reply's id holds the caller's X-Request-Id.
    * ``null_usage``: events without usage say so.
    """

    owned_by: str
    stop_key: str | None = "stop_reason"
    always: bool = False
    flat_errors: bool = False
    handles: bool = False
    cache_report: bool = True
    named_by_caller: bool = False
    null_usage: bool = False
    version: str | None = None


DIALECTS: Mapping[Protocol, Dialect] = {
    "vllm": Dialect("vllm", handles=True, named_by_caller=True, version="0.32.0"),
    "sglang": Dialect(
        "sglang",
        stop_key="matched_stop",
        always=True,
        flat_errors=True,
        cache_report=False,
        null_usage=True,
    ),
    "tensorrt-llm": Dialect("tensorrt_llm", flat_errors=True, version="1.2.0"),
    "neuron": Dialect("vllm", cache_report=False, named_by_caller=True, version="0.9.1"),
    "openai": Dialect("weft-mock", stop_key=None),
}
