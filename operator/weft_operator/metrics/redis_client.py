"""The operator's connection to the Redis of the routers: it only reads there, and waits for no answer for long."""

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

TIMEOUT_S = 0.5
"""A Redis that does not answer holds up whoever asks for so long at most."""


def reader(url: str) -> redis.Redis:
    """Return a client that connects with its first question, and asks nothing twice."""
    return redis.Redis.from_url(
        url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0), max_connections=8
    )
