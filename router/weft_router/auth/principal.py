"""Who sends a request, and what they may do: the outcome of authentication, and the input of admission."""

import re
from dataclasses import dataclass
from typing import Final

NO_KEYS_TENANT: Final = "default"
"""The only tenant without authentication; no key and no token may name it, for its KV is not salted."""

_TENANT = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Most that may be asked for; None is without bound. ``burst_s`` seconds of a rate may come at once."""

    rps: float | None = None
    tpm: float | None = None
    concurrent: int | None = None
    burst_s: float = 10.0

    @property
    def bind(self) -> bool:
        """Return whether there is a bound."""
        return self.rps is not None or self.tpm is not None or self.concurrent is not None


@dataclass(frozen=True, slots=True)
class Principal:
    """A tenant with what its key or token says; ``id`` is what rates are counted by and tells nothing of the key."""

    tenant: str
    id: str
    class_name: str = ""
    bounds: RateLimits | None = None
    weight: float | None = None


ANYONE = Principal(NO_KEYS_TENANT, NO_KEYS_TENANT)


def tenant_fits(name: str) -> bool:
    """Return whether a text may name a tenant: 1 to 128 visible ASCII characters, and not the tenant of everyone."""
    return name != NO_KEYS_TENANT and _TENANT.fullmatch(name) is not None
