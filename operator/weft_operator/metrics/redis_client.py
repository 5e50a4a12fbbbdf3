"""The operator's connection to the routers' Redis, with short timeouts."""

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

TIMEOUT_S = 0.5
"""Timeout of requests."""


def reader(url: str) -> redis.Redis:
    """Return a client that connects with its first request and does not retry."""
    return redis.Redis.from_url(
        url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0), max_connections=8
    )
