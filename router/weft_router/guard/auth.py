"""Know tenants by API key: keys come from a mounted Secret, are kept as hashes, and are read again on change."""

import hashlib
import logging
from pathlib import Path

from weft_router.config import ConfigError
from weft_router.errors import UnauthorizedError

log = logging.getLogger(__name__)

NO_KEYS_TENANT = "default"


class ApiKeys:
    """The keys a coordinator accepts; without a file everyone is one tenant."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._digests: frozenset[str] = frozenset()
        if path is not None and not self.reload():
            raise ConfigError(f"WEFT_API_KEYS_FILE={path}: holds no key; write one key a line")

    def reload(self) -> bool:
        """Read the file again if it changed; tell whether any key is known. A broken file keeps the old keys."""
        if self._path is None:
            return False
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp != self._stamp:
                lines = self._path.read_text().splitlines()
                keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
                if keys:
                    self._digests = frozenset(_digest(key) for key in keys)
                    self._stamp = stamp
                    log.info("api_keys_read", extra={"keys": len(keys)})
        except (OSError, UnicodeDecodeError) as error:
            log.warning("api_keys_unreadable", extra={"error": type(error).__name__})
        return bool(self._digests)

    def tenant(self, authorization: str | None) -> str:
        """Return the tenant of a request's Authorization header.

        Raises:
            UnauthorizedError: keys are required and the header has none of them.
        """
        if self._path is None:
            return NO_KEYS_TENANT
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise UnauthorizedError("an API key is required; send it as 'Authorization: Bearer <key>'")
        digest = _digest(key.strip())
        if digest not in self._digests:
            raise UnauthorizedError("the API key is not known here; check it")
        return digest[:16]


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
