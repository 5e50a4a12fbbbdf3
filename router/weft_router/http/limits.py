"""What one client may take: bytes, places and time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of a listener; sizes in bytes, times in seconds."""

    max_line: int = 8 * 2**10
    """The request line, and each header line."""
    max_headers: int = 100
    max_head: int = 64 * 2**10
    """A request's line and headers together."""
    max_body: int = 32 * 2**20
    ungated: int = 0
    """Bodies up to here are read, and dropped, where a gate refuses their request, so that the connection is kept."""
    max_connections: int = 10_000
    max_pipelined: int = 16
    """Requests that may wait behind the one being served; their bodies together may take ``max_body``."""
    max_unread: int = 256 * 2**10
    """What is kept for a client that does not read."""
    header_s: float = 10.0
    """From the connection, or a request's first byte, to the end of its headers."""
    body_s: float = 30.0
    """For a body, and one second more for each ``min_body_rate`` bytes that came; nor may nothing come for so long."""
    min_body_rate: float = 64 * 2**10
    """Bytes a second; 0 for any rate."""
    keep_alive_s: float = 75.0
    """Between two requests."""
    stall_s: float = 30.0
    """How long a client may leave its buffer full."""
    handshake_s: float = 10.0
    """For a TLS handshake."""
    linger_s: float = 5.0
    """How long what a refused client still sends is read and dropped, so that it can read why."""
    sweep_s: float = 0.5
    """How often the times above are looked at."""
