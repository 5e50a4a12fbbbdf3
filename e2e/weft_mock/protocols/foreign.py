"""Find transfer fields that a protocol's engines must never be sent, wherever a client may have hidden them."""

import unicodedata
from collections.abc import Iterator, Mapping

from weft_mock.config import Protocol

_OWN: Mapping[Protocol, frozenset[str]] = {
    "vllm": frozenset({"kv_transfer_params"}),
    "sglang": frozenset({"bootstrap_host", "bootstrap_port", "bootstrap_room"}),
    "tensorrt-llm": frozenset({"disaggregated_params", "prompt_token_ids"}),
    "neuron": frozenset(),
    "openai": frozenset(),
}
_TRANSFER = frozenset(
    {
        "kv_transfer_params",
        "ec_transfer_params",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "disaggregated_params",
        "prompt_token_ids",
        "do_local_prefill",
        "do_remote_prefill",
        "do_remote_decode",
        "data_parallel_rank",
    }
)
# Where extensions of a body live: some engines merge them into the request.
_NESTS = frozenset({"extra_body", "vllm_xargs", "extra_args", "nvext"})


def foreign_fields(body: Mapping[str, object], protocol: Protocol) -> Iterator[str]:
    """Yield the path of every transfer field that is not this protocol's own, spelled in any case."""
    own = _OWN[protocol]
    for key, value in body.items():
        name = _plain(key)
        if name in _TRANSFER and key not in own:
            yield name
        if name in _NESTS and isinstance(value, Mapping):
            for inner in value:
                if _plain(inner) in _TRANSFER:
                    yield f"{name}.{_plain(inner)}"


def _plain(key: object) -> str:
    return unicodedata.normalize("NFKC", str(key)).casefold().strip().replace("-", "_")
