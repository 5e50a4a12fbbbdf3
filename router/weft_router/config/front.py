"""The front door: bounds on requests and clients, who may come in, and TLS."""

import re
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from weft_core.authority import is_http_url
from weft_router.config.qos import Rates
from weft_router.config.section import Section

Algorithm = Literal["RS256", "ES256", "EdDSA"]
_MEDIA_HOST: Final = re.compile(
    r"(\*\.)?([a-z0-9]([-a-z0-9]*[a-z0-9])?\.)+[a-z]([-a-z0-9]*[a-z0-9])?(:[0-9]{1,5})?", re.IGNORECASE
)
"""A name of several parts whose last begins with a letter: no spelling of an IP address does."""


_ORIGIN: Final = re.compile(r"\*|https?://[a-z0-9.\[\]:-]+", re.IGNORECASE)


class LimitsConfig(Section):
    """Bounds on one request and on one client; beyond them a request is refused before any byte goes upstream."""

    max_body_bytes: int = Field(default=32 * 2**20, ge=1024)
    """The body of a request."""
    max_body_nodes: int = Field(default=200_000, ge=1024)
    """The values in a request's body, one more for a name, four for an array or object; token ids count, too."""
    max_bytes_in_flight: int | None = Field(default=None, ge=65536)
    """Bytes that clients may make one process hold: unfinished requests, twice the body of each that is served, unread
    answers; absent, a quarter of the memory limit, shared by the processes. What exceeds it gets 503."""
    max_n: int = Field(default=8, ge=1)
    """``n`` and ``best_of``."""
    max_output_tokens: int = Field(default=32768, ge=1)
    """Tokens that an answer may be asked to have."""
    max_reply_bytes: int = Field(default=64 * 2**20, ge=1024)
    """An answer in one piece, and one event of a stream."""
    max_line_bytes: int = Field(default=8192, ge=256)
    """The request line, and each header line."""
    max_headers: int = Field(default=100, ge=8)
    """Header lines of one request."""
    max_header_bytes: int = Field(default=65536, ge=1024)
    """All headers together."""
    max_connections: int = Field(default=10_000, ge=1)
    """Clients connected to one process."""
    min_body_rate: int = Field(default=65536, ge=0)
    """Bytes a second that a body must come with: it has ``timeouts.body`` seconds, and one more for each so many bytes
    that came; 0 for any rate."""
    max_unread_bytes: int = Field(default=256 * 2**10, ge=4096)
    """What is kept for a client that does not read; full for ``timeouts.slowReader`` seconds, it is cut off."""
    max_nameless_sessions: int = Field(default=50_000, ge=100)
    """Conversations without a session id that one coordinator process remembers of each tenant, by their rounds; the
    oldest is forgotten first, in Redis, too."""
    quarantine_seconds: float = Field(default=600.0, ge=0, le=86400)
    """How long a request that crashed an engine is refused; 0: never."""
    rates: Rates = Field(default_factory=Rates)
    """For each API key or token that has no bounds of its own, at one coordinator process."""


class RequestsConfig(Section):
    """What requests may hold beyond what every client may send; looked at where clients come in."""

    allowed_fields: tuple[str, ...] = ()
    """Fields that are refused otherwise, such as ``chat_template``, ``vllm_xargs``, ``chat_template_kwargs.NAME`` for
    one variable of templates, ``tools.mcp`` for a kind of tools, ``image_embeds`` for a kind of parts."""
    media_hosts: tuple[str, ...] = ()
    """Hosts that engines may load media from: ``HOST``, ``HOST:PORT`` or ``*.DOMAIN``; only ``data:`` URLs if empty."""
    media_over_http: bool = False
    """Whether without TLS, too."""

    @field_validator("media_hosts")
    @classmethod
    def _names(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not _MEDIA_HOST.fullmatch(host):
                raise ValueError(
                    f"{host[:128]!r} is no name of a host; write media.example.com, media.example.com:8443 or"
                    " *.example.com, and no address"
                )
        return hosts


class CorsConfig(Section):
    """Which web pages may call the service from a browser."""

    allowed_origins: tuple[str, ...] = Field(min_length=1)
    """Origins as browsers name them, such as ``https://chat.example.com``; ``*`` is every one."""

    @field_validator("allowed_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin[:128]!r} is no origin; write https://chat.example.com, without a path, or *")
        return origins


class HoldConfig(Section):
    """What becomes of a request while no decode worker is ready: it waits, and workers come back for it."""

    seconds: float = Field(gt=0, le=3600)
    """How long a request waits at most; then it gets 503 with Retry-After."""
    most: int = Field(default=64, ge=1)
    """Requests that wait at one coordinator process; more get 503 at once."""


class JwtConfig(Section):
    """Tokens that an identity provider signed; only asymmetric algorithms."""

    issuer: str = Field(min_length=1)
    """The token's ``iss`` must be this."""
    audience: tuple[str, ...] = Field(min_length=1)
    """One of these must be in the token's ``aud``."""
    jwks_url: str = ""
    """Where the provider publishes its keys; fetched in the background, never on a request's path."""
    jwks_file: str = ""
    """A file with the same, read again as often."""
    algorithms: tuple[Algorithm, ...] = Field(default=("RS256", "ES256", "EdDSA"), min_length=1)
    """What tokens may be signed with; a key of the provider stands for one of them."""
    tenant_claim: str = Field(default="sub", min_length=1)
    """The claim that names the tenant."""
    class_claim: str = ""
    """The claim that names the class of the token's requests; none if empty."""
    limits_claim: str = ""
    """The claim that limits the token's holder as a line of API keys does: an object with ``rps``, ``tpm``,
    ``concurrent`` and ``weight``, and with ``key``, by which rates are counted; none if empty."""
    leeway_seconds: float = Field(default=30.0, ge=0, le=300)
    """How far the provider's clock may be off."""
    refresh_seconds: float = Field(default=300.0, ge=10)
    """Interval at which the keys are fetched again."""

    @field_validator("audience", mode="before")
    @classmethod
    def _one_or_more(cls, given: object) -> object:
        return (given,) if isinstance(given, str) else given

    @model_validator(mode="after")
    def _one_source(self) -> "JwtConfig":
        if bool(self.jwks_url) == bool(self.jwks_file):
            raise ValueError("give exactly one of jwksUrl and jwksFile")
        if self.jwks_url:
            if not is_http_url(self.jwks_url):
                raise ValueError("jwksUrl: must be a URL such as https://id.example.com/keys or https://[fd00::7]/keys")
            parts = urlsplit(self.jwks_url)
            inside = parts.hostname in ("127.0.0.1", "localhost", "::1")
            if not parts.hostname or parts.scheme not in (("https", "http") if inside else ("https",)):
                raise ValueError("jwksUrl: must begin with https://, because who answers there decides who may come in")
            if parts.username or parts.password:
                raise ValueError("jwksUrl: must hold no user name or password; remove them")
        return self


class AuthConfig(Section):
    """Who may send requests: holders of an API key, of a token, or, with neither, everyone."""

    api_keys_file: str = ""
    """A file with [one key a line](../front-door.md); WEFT_API_KEYS_FILE wins over it."""
    jwt: JwtConfig | None = None


class TlsConfig(Section):
    """The certificate of the front door; both files are read again when they change."""

    cert_file: str = Field(min_length=1)
    """Certificate and intermediates, PEM."""
    key_file: str = Field(min_length=1)
    """Its private key, PEM, unencrypted."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """Oldest version of TLS that is spoken."""
    client_ca_file: str = ""
    """Certificates that clients must be signed by; none are asked for if empty."""
