"""Redis users on a real API server and a real Redis: what a service's namespace holds, from its making to its end."""

import base64
import json
from collections.abc import Iterator

import pytest
from redis.exceptions import NoPermissionError

from redis import Redis
from weft_operator.api.objects import ServiceKey
from weft_operator.render.redis_user import redis_user
from weft_operator_tests.api import RealApi, small_service
from weft_operator_tests.cluster import condition, wait_for
from weft_operator_tests.guarded_redis import PASSWORD, GuardedRedis
from weft_operator_tests.guarded_redis import guarded_redis as guarded_redis

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400, func_only=True)]

KINDS = ("api/v1/secrets", "api/v1/configmaps", "apis/apps/v1/deployments", "apis/apps/v1/statefulsets")


@pytest.fixture(autouse=True)
def ended(api: RealApi) -> Iterator[None]:
    """End the operators of each test."""
    yield
    api.heal()


def test_a_namespace_holds_the_users_of_its_own_services_and_they_end_with_them(
    api: RealApi, guarded_redis: GuardedRedis
) -> None:
    mine, others = api.namespace(), api.namespace()
    names = {mine: "first", others: "second"}
    operator = api.replica("a", f"{mine},{others}", lease_s=5, WEFT_REDIS_URL=guarded_redis.url)
    operator.lease = f"{mine}/weft-operator"
    operator.start()
    for namespace, name in names.items():
        api.kube.apply(small_service(namespace, name))

    def path(namespace: str) -> str:
        return f"apis/weft.dev/v1alpha1/namespaces/{namespace}/disagginferenceservices/{names[namespace]}"

    def ready() -> bool:
        return all(condition(api.read(path(namespace)), "Ready").get("status") == "True" for namespace in names)

    wait_for("both services", ready, timeout=180)

    def secret(namespace: str) -> dict[str, str]:
        found = api.read(f"api/v1/namespaces/{namespace}/secrets/{names[namespace]}-token")
        assert found is not None
        return {name: base64.b64decode(value).decode() for name, value in found["data"].items()}

    users = {
        namespace: redis_user(ServiceKey(namespace, name), secret(namespace)["token"].encode())
        for namespace, name in names.items()
    }
    # Where Redis answers late, services are ready before their users are written.
    wait_for("both users", lambda: guarded_redis.users() == {user.name for user in users.values()}, timeout=60)
    for namespace in names:
        (url,) = (value for name, value in secret(namespace).items() if name.startswith("redis-url-"))
        assert f"//{users[namespace].name}:{users[namespace].password}@" in url
        text = json.dumps([*secret(namespace).values(), *(api.items(kind, namespace) for kind in KINDS)])
        other = users[others if namespace == mine else mine]
        for word in (PASSWORD, base64.b64encode(PASSWORD.encode()).decode()[:20], other.name, other.password):
            assert word not in text
        with Redis.from_url(url) as router:
            assert router.ping()
            router.set(f"weft:{{{namespace}/{names[namespace]}}}:x", "y")
            with pytest.raises(NoPermissionError):
                router.set(f"weft:{{{other.service}}}:worker:evil", "x")

    api.send("DELETE", path(mine))
    wait_for("the end of its user", lambda: guarded_redis.users() == {users[others].name}, timeout=60)
