"""Authenticate clients as the settings say, and serve TLS; keys and certificates are read again when they change."""

import ssl
from collections.abc import Coroutine
from functools import partial

from weft_router.auth.authenticator import ApiKeys, Authenticator
from weft_router.auth.tls import ServerTls
from weft_router.config.server import ServerSettings


class AccessControl:
    """Keys, tokens and certificate of one process."""

    def __init__(self, settings: ServerSettings) -> None:
        """Read what the settings name.

        Raises:
            ConfigError: keys or certificate cannot be used.
        """
        config = settings.config
        path = settings.api_keys_file
        self._keys = None if path is None else ApiKeys(path, classes=settings.key_classes)
        self._tls = None if config.tls is None else ServerTls(config.tls)
        self._refresh = None
        if config.auth.jwt is not None:
            # Imported here, because cryptography takes memory that routers without tokens need not spend.
            from weft_router.auth.fetch import fetch
            from weft_router.auth.key_refresh import KeyRefresh
            from weft_router.outbound import create_connection

            # Whoever runs a router by hand, or the chart, chooses its provider; that of a coordinator was chosen by the
            # author of a service.
            chosen = fetch if settings.role in ("standalone", "gateway") else partial(fetch, connect=create_connection)
            self._refresh = KeyRefresh(config.auth.jwt, chosen)
        self.authenticator = Authenticator(self._keys, None if self._refresh is None else self._refresh.verifier)

    @property
    def tls(self) -> ssl.SSLContext | None:
        """Return the context that clients are served with, None for plain HTTP."""
        return None if self._tls is None else self._tls.context

    def keys_age(self) -> float:
        """Return how long ago the identity provider's keys were read, in seconds; 0 where tokens are not taken."""
        return 0.0 if self._refresh is None else self._refresh.age()

    def work(self) -> list[Coroutine[None, None, None]]:
        """Return what has to run beside the server until it ends."""
        return [] if self._refresh is None else [self._refresh.run()]

    def reload(self) -> None:
        """Read keys and certificate again where their files changed; call it every few seconds."""
        if self._keys is not None:
            self._keys.reload()
        if self._tls is not None:
            self._tls.reload()
