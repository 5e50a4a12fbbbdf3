"""What a router tells of itself: request log, access lines and traces."""

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from weft_core.authority import is_http_url
from weft_router.config.section import Section


class RequestLogConfig(Section):
    """Where a decode worker writes a line for each round: nowhere, its standard output, or a file that is rotated."""

    to: str = Field(default="off", pattern=r"^(off|stdout|/.+)$")
    """off, stdout, or the path of a file."""
    max_bytes: int = Field(default=64 * 2**20, ge=2**16)
    """Size at which a file is rotated."""
    files: int = Field(default=4, ge=1, le=100)
    """Files that are kept, the one written to included."""


class AccessLogConfig(Section):
    """One structured line per request: nowhere, beside the other lines, the standard output, or a rotated file."""

    to: str = Field(default="stderr", pattern=r"^(off|stderr|stdout|/.+)$")
    """off, stderr, stdout, or the path of a file."""
    sample_ratio: float = Field(default=1.0, ge=0, le=1)
    """Share of the lines of successful requests that is written; failures always are."""
    max_bytes: int = Field(default=64 * 2**20, ge=2**16)
    """Size at which a file is rotated."""
    files: int = Field(default=4, ge=1, le=100)
    """Files that are kept, the one written to included."""


class TelemetryConfig(Section):
    """OpenTelemetry spans of rounds; off without an endpoint."""

    otlp_endpoint: str = ""
    """Base URL of an OTLP/HTTP collector: http://collector.monitoring:4318."""
    sample_ratio: float = Field(default=0.01, ge=0, le=1)
    """Share of rounds that begin a trace here; a caller's own decision (traceparent) is followed."""

    @field_validator("otlp_endpoint")
    @classmethod
    def _url(cls, given: str) -> str:
        if given and (not is_http_url(given) or urlsplit(given).username):
            raise ValueError("must be a URL such as http://collector:4318, without user name and password")
        return given
