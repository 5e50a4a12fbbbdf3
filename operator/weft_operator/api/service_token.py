"""The internal token of a service, which authenticates every hop, as its Secret holds it."""

import base64

from weft_operator.api.objects import Manifest

TOKEN_BYTES = 32


def read_token(secret: Manifest) -> bytes | None:
    """Return the token in a Secret; None when it is absent or too short to be one."""
    try:
        token = base64.b64decode((secret.get("data") or {}).get("token", ""), validate=True)
    except ValueError:
        return None
    return token if len(token) >= TOKEN_BYTES else None
