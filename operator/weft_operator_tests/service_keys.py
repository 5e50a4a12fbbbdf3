"""Keys of services for tests of what the operator reads in Redis: each service's Secret holds a token of its own."""

import base64
from collections.abc import Mapping
from typing import Any

from weft_core.keys import derive
from weft_operator.api.objects import ServiceKey
from weft_operator.metrics.state_keys import StateKeys


def token_of(service: ServiceKey) -> bytes:
    """Return the token of a service."""
    return f"token of {service.namespace}/{service.name}".ljust(32, ".").encode()


def state_key(service: ServiceKey) -> bytes:
    """Return the key of a service's records."""
    return derive(token_of(service), "state")


def key_in(secret: Mapping[str, Any] | None) -> bytes:
    """Return the key of the records of a service, from its Secret."""
    assert secret is not None, "the operator made none yet"
    return derive(base64.b64decode(secret["data"]["token"]), "state")


def state_keys() -> StateKeys:
    """Return what reads the tokens of all services."""

    async def read_secret(service: ServiceKey, name: str) -> Mapping[str, Any] | None:
        assert name == f"{service.name}-token"
        return {"data": {"token": base64.b64encode(token_of(service)).decode()}}

    return StateKeys(read_secret, clock=lambda: 0.0)
