"""The public keys of an identity provider (JWKS), each with the one algorithm it may be used for."""

import hashlib
import json
from collections.abc import Collection, Mapping

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK

MAX_KEYS = 100
MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192
"""Verifying with a longer one would hold up every request of the process."""
_ALGORITHMS: Mapping[tuple[object, object], str] = {
    ("RSA", None): "RS256",
    ("EC", "P-256"): "ES256",
    ("OKP", "Ed25519"): "EdDSA",
}


class KeySetError(ValueError):
    """Report a JWKS document that cannot be used."""


class KeySet:
    """Keys by their ids; ``fingerprint`` differs where any key does."""

    def __init__(self, keys: Mapping[str, PyJWK], nameless: tuple[PyJWK, ...], fingerprint: bytes) -> None:
        self._keys = keys
        self._all = (*keys.values(), *nameless)
        self.fingerprint = fingerprint

    def __len__(self) -> int:
        return len(self._all)

    def has(self, kid: str) -> bool:
        """Return whether there is a key of this id."""
        return kid in self._keys

    def find(self, kid: str | None, algorithm: str) -> PyJWK | None:
        """Return the key of a token; one that names no key is meant for the only one of its algorithm."""
        if kid is not None:
            key = self._keys.get(kid)
            return key if key is not None and key.algorithm_name == algorithm else None
        fitting = [key for key in self._all if key.algorithm_name == algorithm]
        return fitting[0] if len(fitting) == 1 else None


def read_key_set(raw: bytes, algorithms: Collection[str]) -> KeySet:
    """Return the keys of a JWKS document that tokens may be verified with; the others are left out.

    Raises:
        KeySetError: it is no such document, or holds no key that may be used.
    """
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise KeySetError("is not JSON") from error
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise KeySetError("has no list of keys")
    if len(entries) > MAX_KEYS:
        raise KeySetError(f"has more than {MAX_KEYS} keys")
    named: dict[str, PyJWK] = {}
    nameless: list[PyJWK] = []
    for entry in entries:
        key = _usable(entry, algorithms)
        if key is None:
            continue
        kid = entry.get("kid")
        if not isinstance(kid, str):
            nameless.append(key)
        elif kid in named:
            raise KeySetError("has two keys of one id")
        else:
            named[kid] = key
    if not named and not nameless:
        raise KeySetError(f"has no public signing key for {', '.join(algorithms)}")
    digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).digest()
    return KeySet(named, tuple(nameless), digest)


def _usable(entry: object, algorithms: Collection[str]) -> PyJWK | None:
    if not isinstance(entry, dict) or "d" in entry or entry.get("use", "sig") != "sig":
        return None
    kind = entry.get("kty")
    algorithm = _ALGORITHMS.get((kind, None if kind == "RSA" else entry.get("crv")))
    if algorithm is None or algorithm not in algorithms or entry.get("alg", algorithm) != algorithm:
        return None
    operations = entry.get("key_ops")
    if operations is not None and (not isinstance(operations, list) or "verify" not in operations):
        return None
    try:
        key = PyJWK.from_dict(entry, algorithm=algorithm)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError):
        return None
    if isinstance(key.key, RSAPublicKey) and not MIN_RSA_BITS <= key.key.key_size <= MAX_RSA_BITS:
        return None
    return key
