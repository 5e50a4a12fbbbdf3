"""Tell a service whom the gateway has authenticated: by a token that names the tenant, for that service alone.

To services the gateway is an identity provider (``spec.coordinator.auth.jwt``): they have its public key, and nothing
with which they could speak for it. What a service is sent is of no use at another one, for its audience is the service.
"""

import logging
from hashlib import sha256
from pathlib import Path

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from jwt.algorithms import OKPAlgorithm

from weft_router.auth.principal import Principal, RateLimits
from weft_router.config.gateway import HopConfig
from weft_router.config.section import ConfigError

log = logging.getLogger(__name__)

ALGORITHM = "EdDSA"
CLASS_CLAIM = "class"
LIMITS_CLAIM = "limits"
LIMIT = 10_000
"""Tokens that are kept to be sent again."""


class HopTokens:
    """Makes tokens, and sends the same one for half of its life."""

    def __init__(self, config: HopConfig) -> None:
        """Read the key.

        Raises:
            ConfigError: there is none that can be used.
        """
        self._config = config
        self._path = Path(config.key_file)
        self._made: dict[tuple[str, str, str, str], tuple[str, float]] = {}
        self._stamp = self._read_stamp()
        self._key = read_key(self._path)
        self._id = key_id(self._key)

    def reload(self) -> None:
        """Read the key again if its file changed; one that cannot be used changes nothing."""
        try:
            stamp = self._read_stamp()
            if stamp == self._stamp:
                return
            self._stamp = stamp
            key = read_key(self._path)
        except ConfigError as error:
            log.warning("hop_key_refused", extra={"error": str(error)})
            return
        self._key, self._id = key, key_id(key)
        self._made.clear()
        log.info("hop_key_read", extra={"kid": self._id})

    def of(self, principal: Principal, service: str, now: float) -> str:
        """Return the token of a principal for a service; ``now`` is seconds since 1970."""
        place = (principal.tenant, principal.id, principal.class_name, service)
        known = self._made.get(place)
        if known is not None and now < known[1]:
            return known[0]
        token = self._signed(principal, service, now)
        if len(self._made) >= LIMIT:
            self._made.clear()
        self._made[place] = token, now + self._config.seconds / 2
        return token

    def _signed(self, principal: Principal, service: str, now: float) -> str:
        issued = int(now)
        claims: dict[str, object] = {
            "iss": self._config.issuer, "aud": service, "sub": principal.tenant,
            "iat": issued, "exp": issued + int(self._config.seconds),
        }  # fmt: skip
        if principal.class_name:
            claims[CLASS_CLAIM] = principal.class_name
        claims[LIMITS_CLAIM] = _limits(principal)
        return jwt.encode(claims, self._key, algorithm=ALGORITHM, headers={"kid": self._id})

    def _read_stamp(self) -> tuple[int, int, int]:
        try:
            stat = self._path.stat()
        except OSError as error:
            raise ConfigError(f"hop.keyFile={self._path}: cannot be read ({error.strerror}); check the path") from error
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _limits(principal: Principal) -> dict[str, object]:
    """Return what a principal may ask for; services count it, for only they know what answers take."""
    bounds = principal.bounds or RateLimits()
    limits = {"rps": bounds.rps, "tpm": bounds.tpm, "concurrent": bounds.concurrent, "weight": principal.weight}
    return {"key": principal.id, **{name: value for name, value in limits.items() if value is not None}}


def read_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key in a file.

    Raises:
        ConfigError: there is none of the right kind.
    """
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise ConfigError(f"hop.keyFile={path}: cannot be read ({error.strerror}); check the path") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # whose texts may hold parts of the key
        raise ConfigError(f"hop.keyFile={path}: holds no unencrypted private key in PEM; write a new one") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"hop.keyFile={path}: is a key of another kind; write one of Ed25519")
    return key


def key_id(key: Ed25519PrivateKey) -> str:
    """Return what a key is called in tokens and in the document of public keys."""
    return sha256(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:16]


def key_set(key: Ed25519PrivateKey) -> dict[str, object]:
    """Return the document (JWKS) by which services verify tokens that are signed with a key."""
    public = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {"keys": [{**public, "kid": key_id(key), "use": "sig", "alg": ALGORITHM}]}
