"""Know who sends a request: by API key from a mounted Secret, kept as digests, or by a signed token."""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol, cast

from weft_router.auth.key_file import KeyFileError, digest, parse
from weft_router.auth.principal import ANYONE, Principal
from weft_router.config import ConfigError
from weft_router.errors import UnauthorizedError
from weft_router.http.head import CredentialCache

log = logging.getLogger(__name__)

_NEEDED = "an API key is required; send it as 'Authorization: Bearer <key>' or 'X-Api-Key: <key>'"
_UNKNOWN = "the API key is not known here; check it"


class TokenAuthenticator(Protocol):
    """Verifies signed tokens."""

    def verify(self, token: str, now: float) -> Principal:
        """Return who holds a token; ``now`` is seconds since 1970.

        Raises:
            ApiError: it is refused.
        """


class ApiKeys:
    """The keys a coordinator accepts."""

    def __init__(self, path: Path, *, classes: Collection[str] | None = None) -> None:
        """Read the keys.

        Raises:
            ConfigError: the file cannot be read, is not understood, or holds no key.
        """
        self._path = path
        self._classes = classes
        self._stamp: tuple[int, int, int] | None = None
        self._callers: dict[bytes, Principal] = {}
        self.edition = object()
        """Another object each time other keys were read."""
        try:
            self._read(path)
        except (OSError, UnicodeDecodeError) as unreadable:
            raise ConfigError(
                f"WEFT_API_KEYS_FILE={path}: cannot be read ({type(unreadable).__name__})"
            ) from unreadable
        except KeyFileError as error:
            raise ConfigError(f"WEFT_API_KEYS_FILE={path}: {error}") from error

    def __len__(self) -> int:
        return len(self._callers)

    def reload(self) -> bool:
        """Read the file again if it changed; tell whether any key is known. A broken file keeps the old keys."""
        try:
            self._read(self._path)
        except (OSError, UnicodeDecodeError) as unreadable:
            log.warning("api_keys_unreadable", extra={"error": type(unreadable).__name__})
        except KeyFileError as error:
            log.warning("api_keys_refused", extra={"error": str(error)})
        return bool(self._callers)

    def find(self, key: str) -> Principal | None:
        """Return the principal of a key; None when the key is unknown."""
        return self._callers.get(digest(key))

    def _read(self, path: Path) -> None:
        stat = path.stat()
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if stamp == self._stamp:
            return
        callers = parse(path.read_text(encoding="utf-8"), classes=self._classes)
        if not callers:
            raise KeyFileError("holds no key; write one key a line")
        self._callers = callers
        self.edition = object()
        self._stamp = stamp
        log.info("api_keys_read", extra={"keys": len(callers)})


class Authenticator:
    """Tells who sends a request; with neither keys nor tokens configured everyone is one tenant."""

    def __init__(self, keys: ApiKeys | None, tokens: TokenAuthenticator | None = None) -> None:
        self._keys = keys
        self._tokens = tokens
        self._open = keys is None and tokens is None

    def cached(self, credential_cache: CredentialCache | None) -> Principal | None:
        """Return who sends the requests with these credentials, if that is known without their header.

        A key's holder was kept by ``principal``, and stays there as long as no other keys were read.
        """
        if self._open:
            return ANYONE
        keys = self._keys
        if credential_cache is None or keys is None or credential_cache.by is not keys.edition:
            return None
        return cast(Principal, credential_cache.principal)

    def principal(
        self, authorization: str | None, now: float, credential_cache: CredentialCache | None = None
    ) -> Principal:
        """Return who sends a request with this Authorization header; ``now`` is seconds since 1970.

        A key's holder is kept in the ``credential_cache`` of the requests with the same header; a token is verified
        each time, because it expires.

        Raises:
            UnauthorizedError: the credentials are unknown.
            UnavailableError: the keys that tokens are verified with are not there yet.
        """
        known = self.cached(credential_cache)
        if known is not None:
            return known
        keys = self._keys
        secret = bearer(authorization)
        if keys is not None:
            principal = keys.find(secret)
            if principal is not None:
                if credential_cache is not None:
                    credential_cache.by, credential_cache.principal = keys.edition, principal
                return principal
        if self._tokens is not None and secret.count(".") == 2:
            return self._tokens.verify(secret, now)
        raise UnauthorizedError(_UNKNOWN)


def authorization_of(headers: Mapping[str, str]) -> str | None:
    """Return a request's Authorization header, or what its X-Api-Key, which Anthropic's clients send, stands for."""
    given = headers.get("authorization")
    if given is None and "x-api-key" in headers:
        return f"Bearer {headers['x-api-key']}"
    return given


def bearer(authorization: str | None) -> str:
    """Return what stands behind "Bearer" in an Authorization header.

    Raises:
        UnauthorizedError: the header is missing or of another kind.
    """
    if authorization is not None and authorization.startswith("Bearer "):
        secret = authorization[7:].strip()
        if secret:
            return secret
    scheme, _, secret = (authorization or "").partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret:
        raise UnauthorizedError(_NEEDED)
    return secret
