"""Let pages of other origins call the service from a browser (Fetch standard, section "CORS protocol").

Credentials in the sense of that protocol, cookies, are never allowed: keys and tokens come in headers that a page sets.
"""

from collections.abc import Collection, Mapping
from typing import Final

from weft_router.http.header_lines import checked

ANY: Final = "*"
_MAX_AGE_S: Final = 600
"""How long a browser need not ask again."""


class Cors:
    """The origins that are allowed; ``*`` is every one."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)

    def lines(self, headers: Mapping[str, str]) -> str:
        """Return the header lines of an answer by which a browser shows it to the page; none for other origins."""
        origin = headers.get("origin", "")
        if ANY in self._origins:
            allowed = f"Access-Control-Allow-Origin: {ANY}\r\n"
        elif origin in self._origins:
            allowed = f"Access-Control-Allow-Origin: {checked(origin)}\r\nVary: Origin\r\n"
        else:
            return ""
        return f"{allowed}Access-Control-Expose-Headers: *\r\n"

    def preflight(self, headers: Mapping[str, str], methods: Collection[str]) -> str | None:
        """Return the header lines of the answer to a browser that asks before a page's request; None: it may not.

        ``methods``: what may be asked of the path.
        """
        lines = self.lines(headers)
        wanted = headers.get("access-control-request-method", "")
        if not lines or wanted not in methods:
            return None
        asked = headers.get("access-control-request-headers", "")
        named = f"Access-Control-Allow-Headers: {checked(asked)}\r\n" if asked else ""
        return (
            f"{lines}Access-Control-Allow-Methods: {', '.join(sorted(methods))}\r\n{named}"
            f"Access-Control-Max-Age: {_MAX_AGE_S}\r\n"
        )
