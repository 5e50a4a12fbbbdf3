"""Heartbeats of pods that only pretend: each says the role in its pod's label, as a sidecar that follows it does."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from weft_core.heartbeat import WorkerRecord
from weft_core.layouts import WORKER_ROLES
from weft_core.parallelism import parse_degree
from weft_operator.api.objects import (
    DEGREE_LABEL,
    POOL_LABEL,
    REVISION_LABEL,
    ROLE_LABEL,
    SERVICE_LABEL,
    WORKER_LABEL,
    Manifest,
    is_terminating,
    labels_of,
)
from weft_operator_tests.api import RealApi
from weft_operator_tests.service_keys import key_in
from weft_router.state.redis_store import RedisStore
from weft_router.state.store import StoreDownError

PERIOD_S = 0.5


@contextmanager
def fake_sidecars(api: RealApi, namespace: str, name: str, redis_url: str) -> Iterator[None]:
    """Write the heartbeats of a service's pods into Redis until the end of the block; the service may come and go."""
    ended = Event()
    beats = Thread(target=lambda: asyncio.run(_beat(api, namespace, name, redis_url, ended)), daemon=True)
    beats.start()
    try:
        yield
    finally:
        ended.set()
        beats.join(30)


async def _beat(api: RealApi, namespace: str, name: str, redis_url: str, ended: Event) -> None:
    path = f"api/v1/namespaces/{namespace}/secrets/{name}-token"
    key = b""
    store: RedisStore | None = None
    while not ended.is_set():
        secret = await asyncio.to_thread(api.read, path)
        if secret is not None:
            if store is None or key_in(secret) != key:
                key = key_in(secret)
                store = RedisStore(redis_url, namespace=namespace, service=name, key=key)
            for pod in await asyncio.to_thread(api.items, "api/v1/pods", namespace):
                found = record_of(pod, name)
                if found is not None:
                    with suppress(StoreDownError):  # a busy Redis: the next one is due in half a second
                        await store.heartbeat(found)
        await asyncio.to_thread(ended.wait, PERIOD_S)
    if store is not None:
        await store.close()


def record_of(pod: Manifest, service: str) -> WorkerRecord | None:
    """Return the heartbeat of a worker's pod; None for any other pod, and for one that ends."""
    labels = labels_of(pod)
    role = next((role for role in WORKER_ROLES if role == labels.get(ROLE_LABEL)), None)
    if role is None or labels.get(SERVICE_LABEL) != service or WORKER_LABEL not in labels or is_terminating(pod):
        return None
    return WorkerRecord(
        labels[WORKER_LABEL],
        role,
        "http://10.0.0.1:8080",
        parse_degree(labels[DEGREE_LABEL]),
        1,
        pool=labels[POOL_LABEL],
        revision=labels[REVISION_LABEL],
        ready=True,
    )
