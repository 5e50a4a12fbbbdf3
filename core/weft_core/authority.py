"""Write and read the authority of a URL (RFC 3986, section 3.2): host and port, an IPv6 address in brackets."""

from ipaddress import AddressValueError, IPv6Address
from urllib.parse import urlsplit


def bracketed(host: str) -> str:
    """Return a host as URLs have it: an IPv6 address in brackets, anything else as it is."""
    return f"[{host}]" if ":" in host else host


def authority(host: str, port: int | str) -> str:
    """Return ``host:port`` or ``[address]:port``."""
    return f"{bracketed(host)}:{port}"


def http_url(host: str, port: int | str) -> str:
    """Return the ``http://`` URL of a host and port."""
    return f"http://{authority(host, port)}"


def split_authority(text: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of a text such as 10.0.0.7:8080 or [fd00::7]:8080.

    Raises:
        ValueError: the text is nothing of the kind; the message shows both forms.
    """
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        valid = _is_ipv6(host)
    else:
        valid = bool(host) and ":" not in host
    if (
        not valid
        or text.split() != [text]
        or set(host) & set("[]/@")
        or not (port.isascii() and port.isdigit())
        or int(port) > 65535
    ):
        raise ValueError(f"{text!r} is not HOST:PORT, for example 10.0.0.7:8080 or [fd00::7]:8080")
    return host, int(port)


def is_http_url(text: str) -> bool:
    """Return whether a text is an http:// or https:// URL with a host, an IPv6 address in brackets."""
    try:
        parts = urlsplit(text)
        _port = parts.port  # of an address without brackets all behind the first colon is taken for it, and fails
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and text.split() == [text]


def listen_host(host: str) -> str | None:
    """Return what asyncio's servers take as the host to listen on: None for ``::``, which is every address.

    For ``::`` itself asyncio and uvloop open a socket without IPv4 (IPV6_V6ONLY). For None they open one socket for
    each family, and go without IPv6 where the kernel has none.
    """
    return None if host == "::" else host


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except AddressValueError:
        return False
    return True
