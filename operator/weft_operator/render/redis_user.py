"""The Redis user of a service: name, password, ACL rules, and the URL of its pods. Pure.

Name and password follow from the service's token, so that nothing new is stored, two clusters that share one Redis have
different users for services of one name, and a new token ends the access of whoever holds the old one.
"""

import hashlib
import hmac
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from weft_core.heartbeat import key_prefix
from weft_core.keys import derive
from weft_operator.api.objects import ServiceKey

PREFIX = "weft."
"""Prefix of the users' names, which no user of an administrator or of the chart has."""

COMMANDS = (
    *("ping", "select"),
    *("getrange", "set", "del", "unlink", "type"),
    *("sadd", "srem", "sscan"),
    *("watch", "multi", "exec", "unwatch"),
)
"""The Redis commands of routers and weight downloads.

No script: one that does not end stops Redis for all, and what scripts take of its memory is in no key to be evicted.
"""

GREETING = ("client|setinfo",)
"""What the client library sends with each connection since Redis 7.2; an older server refuses a rule that names it, and
the library bears the refusal of the command."""

_SCHEMES = ("redis", "rediss")


@dataclass(frozen=True, slots=True)
class RedisUser:
    """One service's user."""

    service: ServiceKey
    name: str
    password: str = field(repr=False)

    def rules(self, *, greeting: bool = True) -> tuple[str, ...]:
        """Return the arguments of ACL SETUSER after the name: the keys of one service, no channel, few commands.

        Redis sees the password's hash alone, which its log of slow commands may show.
        """
        commands = (*COMMANDS, *(GREETING if greeting else ()))
        return (
            "reset",
            "on",
            "#" + hashlib.sha256(self.password.encode()).hexdigest(),
            "resetchannels",
            f"~{key_prefix(self.service.namespace, self.service.name)}*",
            *(f"+{command}" for command in commands),
        )


def redis_user(service: ServiceKey, token: bytes) -> RedisUser:
    """Return the user of a service with this token."""
    mark = derive(token, "redis user").hex()[:12]
    name = f"{PREFIX}{service.namespace}.{service.name}.{mark}"
    password = hmac.digest(derive(token, "redis password"), name.encode(), "sha256").hex()
    return RedisUser(service, name, password)


def service_of(name: str) -> ServiceKey | None:
    """Return the service of a user's name, None for other users."""
    if not name.startswith(PREFIX):
        return None
    namespace, _, rest = name.removeprefix(PREFIX).partition(".")
    service, _, mark = rest.rpartition(".")
    return ServiceKey(namespace, service) if namespace and service and mark else None


def is_own(url: str, service: ServiceKey, *, at: str) -> bool:
    """Return whether a Redis URL has a user of this service, at the server of the operator's URL ``at``."""
    found, ours = urlsplit(url), urlsplit(at)
    place = found.netloc.rpartition("@")[2] == ours.netloc.rpartition("@")[2]
    return place and service_of(unquote(found.username or "")) == service


def has_users(url: str) -> bool:
    """Return whether a URL is one of Redis; the in-memory store has no users."""
    return urlsplit(url).scheme in _SCHEMES


def url_for(url: str, user: RedisUser) -> str:
    """Return a Redis URL with a service's user instead of the operator's."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    query = urlencode([item for item in parse_qsl(parts.query) if item[0] not in ("username", "password")])
    netloc = f"{quote(user.name, safe='')}:{quote(user.password, safe='')}@{host}"
    return urlunsplit((parts.scheme, netloc, parts.path, query, parts.fragment))
