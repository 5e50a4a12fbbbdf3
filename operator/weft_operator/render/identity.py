"""The service account without rights, and the internal token that authenticates all requests between pods."""

import base64
import hashlib
import hmac

from weft_core.keys import derive
from weft_operator.api.objects import Manifest
from weft_operator.render.engines.container import PROOF_KEY
from weft_operator.render.inputs import Rendering
from weft_operator.render.redis_user import has_users, redis_user, url_for

_REDIS_FILE = "redis-url-"


def service_account(rendering: Rendering) -> Manifest:
    """Return the ServiceAccount of all pods: it has no rights and no token."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": rendering.metadata(rendering.name(), "identity"),
        "automountServiceAccountToken": False,
    }


def token_secret(rendering: Rendering, token: bytes) -> Manifest:
    """Return the Secret that holds the internal token."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": rendering.metadata(rendering.name("token"), "identity"),
        "type": "Opaque",
        "data": {
            "token": base64.b64encode(token).decode(),
            **{name: base64.b64encode(url.encode()).decode() for name, url in _redis(rendering, token)},
            **{name: base64.b64encode(word.encode()).decode() for name, word in _proof(rendering, token)},
        },
    }


def _proof(rendering: Rendering, token: bytes) -> list[tuple[str, str]]:
    """Return the proof by which engines recognise the router: derived from the token, which it does not reveal."""
    if rendering.spec.engine.plugin is None:
        return []
    return [(PROOF_KEY, derive(token, "engine proof").hex())]


def redis_file(rendering: Rendering, token: bytes) -> str | None:
    """Return the name of the Redis URL in the Secret, None where the store is in the memory of a process."""
    return next((name for name, _ in _redis(rendering, token)), None)


def held_redis_url(secret: Manifest | None) -> str | None:
    """Return the Redis URL in a service's Secret, None without one."""
    for name, value in ((secret or {}).get("data") or {}).items():
        if name.startswith(_REDIS_FILE):
            try:
                return base64.b64decode(value, validate=True).decode()
            except ValueError:
                return None
    return None


def _redis(rendering: Rendering, token: bytes) -> list[tuple[str, str]]:
    """Return the name and value of the Redis URL, with the service's own user if users are enabled."""
    url = rendering.settings.redis_url
    if not has_users(url):
        return []
    if not rendering.shares_redis_user:
        url = url_for(url, redis_user(rendering.key, token))
    return [(_redis_name(url, token), url)]


def _redis_name(url: str, token: bytes) -> str:
    """Return a name that changes with the URL, so that pods restart; a hash keyed by the token reveals nothing."""
    return _REDIS_FILE + hmac.digest(derive(token, "redis url"), url.encode(), "sha256").hex()[:8]


def token_hash(token: bytes) -> str:
    """Return what pod templates carry of the token, so that a new token restarts the pods that hold the old one.

    64 bits of SHA-256 over 256 random bits tell nothing that could be used as the token.
    """
    return hashlib.sha256(b"weft token\0" + token).hexdigest()[:16]
