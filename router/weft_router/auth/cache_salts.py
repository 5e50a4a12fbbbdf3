"""Keep the cached prefixes of tenants apart: a secret salt per tenant."""

import hashlib
import hmac

from weft_router.auth.principal import NO_KEYS_TENANT


class CacheSalts:
    """The ``cache_salt`` of each tenant: HMAC-SHA256 under the service's token, 64 hexadecimal digits."""

    def __init__(self, secret: bytes, *, limit: int = 10_000) -> None:
        self._secret = secret
        self._limit = limit
        self._known: dict[str, str] = {}

    def of(self, tenant: str) -> str | None:
        """Return a tenant's salt, the same on every worker; None where everyone is one tenant."""
        if tenant == NO_KEYS_TENANT:
            return None
        salt = self._known.get(tenant)
        if salt is None:
            salt = hmac.new(self._secret, tenant.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
            if len(self._known) >= self._limit:
                self._known.clear()
            self._known[tenant] = salt
        return salt
