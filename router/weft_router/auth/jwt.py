"""Verify signed tokens (JWT) of an identity provider: asymmetric algorithms only, keys fetched off the request's path.

What a token says of its own algorithm counts for nothing: each key of the provider has one algorithm, and a token
that names another one is refused. So are ``none``, shared secrets, keys for encryption and extensions marked critical.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import jwt
from jwt import PyJWK

from weft_router.auth.key_set import KeySet
from weft_router.auth.principal import Principal, RateLimits, tenant_fits
from weft_router.config import JwtConfig
from weft_router.errors import UnauthorizedError, UnavailableError

log = logging.getLogger(__name__)

MAX_TOKEN = 8192
_REFUSED = "the token is not accepted here: {}"
_NUMBERS = ("rps", "tpm", "concurrent", "weight")


@dataclass(frozen=True, slots=True)
class _Verified:
    principal: Principal
    not_before: float
    until: float


class TokenVerifier:
    """Verifies tokens against the provider's current keys, and remembers verified ones until they expire."""

    def __init__(
        self, config: JwtConfig, *, keys: KeySet | None = None, wanted: Callable[[], bool] | None = None,
        limit: int = 10_000,
    ) -> None:  # fmt: skip
        """Begin with ``keys`` or with none; ``wanted`` asks for newer ones and tells whether they may come."""
        self._config = config
        self._keys = keys
        self._wanted = wanted or (lambda: False)
        self._limit = limit
        self._verified: dict[bytes, _Verified] = {}

    def reload(self, keys: KeySet) -> None:
        """Verify with other keys from now on; cached tokens are verified again if the keys differ."""
        if self._keys is None or keys.fingerprint != self._keys.fingerprint:
            self._verified.clear()
        self._keys = keys

    def verify(self, token: str, now: float) -> Principal:
        """Return who holds a token; ``now`` is seconds since 1970.

        Raises:
            UnauthorizedError: it is not this provider's, expired, for somebody else, or not understood.
            UnavailableError: its key is not known yet, and is being looked for.
        """
        if len(token) > MAX_TOKEN:
            raise UnauthorizedError(_REFUSED.format(f"it is longer than {MAX_TOKEN} characters"))
        known = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        verified = self._verified.get(known)
        if verified is None:
            verified = self._verify(token)
            self._in_time(verified, now)
            self._remember(known, verified)
        else:
            self._in_time(verified, now)
        return verified.principal

    def _verify(self, token: str) -> _Verified:
        config = self._config
        key = self._key_of(token)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[str(key.algorithm_name)],
                audience=list(config.audience),
                issuer=config.issuer,
                # Times are checked against the caller's clock, and again at each use.
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.MissingRequiredClaimError as error:
            raise UnauthorizedError(_REFUSED.format(f"it has no claim {error.claim}")) from None
        except jwt.InvalidAudienceError:
            raise UnauthorizedError(_REFUSED.format("it is for another audience")) from None
        except jwt.InvalidIssuerError:
            raise UnauthorizedError(_REFUSED.format("it is of another issuer")) from None
        except (jwt.InvalidTokenError, jwt.InvalidKeyError, ValueError, TypeError, RecursionError):
            # Foreign errors may repeat parts of the token, so they are neither shown nor chained.
            raise UnauthorizedError(_REFUSED.format("its signature or form is wrong")) from None
        return self._read(claims)

    def _key_of(self, token: str) -> PyJWK:
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.InvalidTokenError, ValueError, TypeError, RecursionError):
            raise UnauthorizedError(_REFUSED.format("it is not a JWT")) from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in self._config.algorithms:
            raise UnauthorizedError(_REFUSED.format(f"it must be signed with {' or '.join(self._config.algorithms)}"))
        if self._keys is None:
            self._wanted()
            raise UnavailableError("the keys of the identity provider are not there yet; try again shortly")
        key = self._keys.find(kid if isinstance(kid, str) else None, algorithm)
        if key is None:
            if isinstance(kid, str) and not self._keys.has(kid) and self._wanted():
                raise UnavailableError("the token's key is being looked for; try again shortly")
            raise UnauthorizedError(_REFUSED.format("the identity provider has no such key"))
        return key

    def _read(self, claims: Mapping[str, object]) -> _Verified:
        config = self._config
        tenant = claims.get(config.tenant_claim)
        if not isinstance(tenant, str) or not tenant_fits(tenant):
            raise UnauthorizedError(
                _REFUSED.format(f"its claim {config.tenant_claim} must be a text of 1 to 128 visible ASCII characters")
            )
        name = claims.get(config.class_claim) if config.class_claim else None
        principal = Principal(tenant=tenant, id=tenant, class_name=name if isinstance(name, str) else "")
        limits = claims.get(config.limits_claim) if config.limits_claim else None
        return _Verified(
            principal=principal if limits is None else _limited(principal, limits, config.limits_claim),
            not_before=max(_time(claims, "nbf", -math.inf), _time(claims, "iat", -math.inf)),
            until=_time(claims, "exp", math.nan),
        )

    def _in_time(self, verified: _Verified, now: float) -> None:
        leeway = self._config.leeway_seconds
        if not now < verified.until + leeway:  # NaN is never in time
            raise UnauthorizedError(_REFUSED.format("it has expired; get a new one"))
        if now < verified.not_before - leeway:
            raise UnauthorizedError(_REFUSED.format("it is not valid yet"))

    def _remember(self, known: bytes, verified: _Verified) -> None:
        if len(self._verified) >= self._limit:
            for oldest in list(self._verified)[: self._limit // 10 + 1]:
                del self._verified[oldest]
        self._verified[known] = verified


def _limited(principal: Principal, limits: object, claim: str) -> Principal:
    """Return a principal with what a claim says it may ask for."""
    found: dict[str, float] = {}
    key = limits.get("key", principal.id) if isinstance(limits, dict) else None
    if not isinstance(limits, dict) or not isinstance(key, str) or not tenant_fits(key):
        raise UnauthorizedError(_REFUSED.format(f"its claim {claim} must be an object, and key in it a name"))
    for name in _NUMBERS:
        value = limits.get(name)
        if value is None:
            continue
        fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12
        if not fits or (name == "concurrent" and value != int(value)):
            raise UnauthorizedError(_REFUSED.format(f"{name} in its claim {claim} must be a number above 0"))
        found[name] = float(value)
    concurrent = found.get("concurrent")
    bounds = RateLimits(
        rps=found.get("rps"), tpm=found.get("tpm"), concurrent=None if concurrent is None else int(concurrent)
    )
    return replace(principal, id=key, bounds=bounds if bounds.bind else None, weight=found.get("weight"))


def _time(claims: Mapping[str, object], name: str, default: float) -> float:
    value = claims.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise UnauthorizedError(_REFUSED.format(f"its claim {name} must be a time in seconds"))
    return float(value)
