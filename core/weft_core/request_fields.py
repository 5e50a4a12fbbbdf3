"""Fields of requests that are the router's own: it takes them out of every body, so no service can allow them."""

from typing import Final

ROUTER_FIELDS: Final = (
    # KV transfer and its steering: a client that could set these would choose what an engine reads and which hosts it
    # connects to
    "kv_transfer_params",
    "ec_transfer_params",
    "disaggregated_params",
    "do_remote_prefill",
    "do_remote_decode",
    "do_local_prefill",
    "data_parallel_rank",
    "data_parallel_rank_decode",
    "routed_dp_rank",
    "nvext",
    # isolation of cached prefixes between tenants
    "cache_salt",
    # ids the router makes itself: an engine may take addresses from them
    "request_id",
    "rid",
    # session identity, which the router reads first
    "session_id",
    "conversation_id",
    "previous_response_id",
    "prompt_cache_key",
    "session_params",
    # what clients of OpenAI's library call the fields that it puts beside the others: no engine reads it
    "extra_body",
)
ROUTER_FIELD_PREFIXES: Final = ("bootstrap_", "disagg_", "x_weft_", "remote_")
