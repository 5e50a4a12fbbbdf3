"""What every server has to know of its process: who it is, where it listens, and what clients may take."""

from collections.abc import Collection
from pathlib import Path
from typing import Final, Protocol

from weft_router.config.engine import TimeoutsConfig
from weft_router.config.front import AuthConfig, CorsConfig, LimitsConfig, TlsConfig
from weft_router.config.live import LiveConfig
from weft_router.config.observability import AccessLogConfig

FRONT_ROLES: Final = frozenset({"coordinator", "standalone", "epp", "gateway"})
"""The roles that clients talk to."""


class ServerConfig(Protocol):
    """The sections that configure a server."""

    @property
    def limits(self) -> LimitsConfig:
        """Return the bounds on requests and clients."""

    @property
    def timeouts(self) -> TimeoutsConfig:
        """Return the times that clients may take."""

    @property
    def auth(self) -> AuthConfig:
        """Return who may come in."""

    @property
    def tls(self) -> TlsConfig | None:
        """Return the certificate, None for plain HTTP."""

    @property
    def cors(self) -> CorsConfig | None:
        """Return the web pages that may call from a browser."""

    @property
    def access_log(self) -> AccessLogConfig:
        """Return where access lines go."""


class ServerSettings(Protocol):
    """The settings of a process that serves HTTP."""

    @property
    def role(self) -> str:
        """Return the role that it starts with."""

    @property
    def config(self) -> ServerConfig:
        """Return its configuration."""

    @property
    def host(self) -> str:
        """Return where it listens."""

    @property
    def port(self) -> int:
        """Return the port."""

    @property
    def health_host(self) -> str:
        """Return where health and metrics are served without TLS."""

    @property
    def health_port(self) -> int:
        """Return their port; 0: on the main port only."""

    @property
    def url(self) -> str:
        """Return where other router processes find it; empty where they do not."""

    @property
    def token(self) -> bytes:
        """Return the secret that router processes of one service share."""

    @property
    def instance_id(self) -> str:
        """Return what tells one life of the process from the next."""

    @property
    def drain_s(self) -> float:
        """Return how long live requests may finish."""

    @property
    def processes(self) -> int:
        """Return how many processes share the port."""

    @property
    def place(self) -> int:
        """Return its number among these."""

    @property
    def family(self) -> Path | None:
        """Return the folder where they meet."""

    @property
    def api_keys_file(self) -> Path | None:
        """Return the file with the API keys."""

    @property
    def key_classes(self) -> Collection[str] | None:
        """Return the names that ``class=`` of a key may hold, None for any."""

    def live(self) -> LiveConfig | None:
        """Return what follows changes of the configuration, None where a change needs a restart."""
