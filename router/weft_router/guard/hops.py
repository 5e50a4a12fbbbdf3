"""The token between the router's own processes: made by the operator, compared in constant time."""

from collections.abc import Mapping
from hmac import compare_digest
from typing import Final

from weft_router.errors import ApiError

TOKEN_HEADER: Final = "x-weft-token"  # noqa: S105 - the header's name


def token_matches(given: str | None, token: bytes) -> bool:
    """Compare an internal token in constant time."""
    return compare_digest((given or "").encode("utf-8", "replace"), token)


def require_token(headers: Mapping[str, str], token: bytes) -> None:
    """Let a request of the router's own in.

    Raises:
        ApiError: it has not the internal token.
    """
    if not token_matches(headers.get(TOKEN_HEADER), token):
        raise ApiError(f"{TOKEN_HEADER}: this port serves the router's own hops only", status=401)
