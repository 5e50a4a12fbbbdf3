"""Fields of requests that are the router's own: it takes them out of every body, so no service can allow them.

The router has the same lists (``weft_router.api.body``); a test compares both.
"""

ROUTER_FIELDS = (
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
    "cache_salt",
    "request_id",
    "rid",
    "session_id",
    "conversation_id",
    "previous_response_id",
    "prompt_cache_key",
    "session_params",
    "extra_body",
)
ROUTER_FIELD_PREFIXES = ("bootstrap_", "disagg_", "x_weft_", "remote_")

ROUTER_FIELD = f"(?i)^(({'|'.join(ROUTER_FIELDS)})([.]|$)|{'|'.join(ROUTER_FIELD_PREFIXES)})"
"""The pattern of an allowed field that would be taken out all the same."""
