"""Which Redis user the pods of a service get, and what is said where it is not their own."""

import base64
from dataclasses import replace

import pytest

from weft_operator.api.objects import ServiceKey
from weft_operator.controllers.redis_users import RedisUserState
from weft_operator.render.redis_user import redis_user
from weft_operator.settings import RedisUserMode
from weft_operator_tests.samples import KEY, SETTINGS, TOKEN
from weft_operator_tests.world import World

URL = "redis://admin:canary@redis:6379/0"


class Said:
    """What Redis says of users, as a test will have it, and what was asked."""

    def __init__(self, state: RedisUserState = "Unknown") -> None:
        self.state: RedisUserState = state
        self.refusal = "NOPERM" if state == "Refused" else ""
        self.kept: list[tuple[ServiceKey, bytes]] = []
        self.gone: list[str] = []

    async def ensure(self, service: ServiceKey, token: bytes) -> None:
        self.kept.append((service, token))

    def release(self, service: ServiceKey) -> None:
        self.gone.append(f"left {service}")

    def delete(self, service: ServiceKey) -> None:
        self.gone.append(f"dropped {service}")


def secret(world: World) -> dict[str, str]:
    (found,) = (item for key, item in world.cluster.objects.items() if key.kind == "Secret")
    data: dict[str, str] = found["data"]
    return data


def url_of(world: World) -> str:
    (found,) = (value for name, value in secret(world).items() if name != "token")
    return base64.b64decode(found).decode()


async def planned(said: Said, mode: RedisUserMode = "auto", world: World | None = None) -> World:
    """Return a world whose service was planned, or looked at again by an operator that starts anew."""
    world = world or World()
    world.users = said
    world.restart(replace(SETTINGS, redis_url=URL, redis_users=mode))
    for _ in range(3):
        await world.step()
    return world


@pytest.mark.parametrize(
    ("state", "mode", "own"),
    [
        ("Made", "auto", True),
        ("Unknown", "auto", True),
        ("Refused", "auto", False),
        ("Refused", "required", True),
        ("Made", "off", False),
    ],
)
async def test_pods_get_the_services_user_but_where_redis_refuses_it_and_that_is_allowed(
    state: RedisUserState, mode: RedisUserMode, own: bool
) -> None:
    said = Said(state)
    world = await planned(said, mode)
    assert (redis_user(KEY, TOKEN).name in url_of(world)) is own
    assert ("canary" in url_of(world)) is not own
    assert {token for _, token in said.kept} == (set() if mode == "off" else {TOKEN})
    events = [event.reason for event in world.cluster.events]
    assert events.count("RedisUserShared") == (1 if (state, mode) == ("Refused", "auto") else 0)
    refused = (state, mode) == ("Refused", "required")
    assert (world.cluster.condition("Progressing")["reason"] == "RedisUserRefused") is refused


async def test_while_redis_does_not_answer_an_operator_that_starts_leaves_the_url_as_it_is() -> None:
    world = await planned(Said("Refused"))
    shared = url_of(world)
    assert "canary" in shared
    assert url_of(await planned(Said("Unknown"), world=world)) == shared
    own = url_of(await planned(Said("Made"), world=world))
    assert "canary" not in own
    assert url_of(await planned(Said("Unknown"), world=world)) == own


async def test_a_service_that_has_its_own_user_keeps_it_when_redis_refuses_users_later() -> None:
    said = Said("Made")
    world = await planned(said)
    own = url_of(world)
    said.state, said.refusal = "Refused", "NOPERM"
    for _ in range(3):
        await world.step()
    assert url_of(world) == own
    assert url_of(await planned(Said("Refused"), world=world)) == own, "nor by an operator that starts"
    assert "RedisUserShared" not in [event.reason for event in world.cluster.events]
    assert "canary" in url_of(await planned(Said("Refused"), "off", world=world)), "only who says so gets it"


async def test_a_redis_elsewhere_that_refuses_users_is_shared() -> None:
    world, other = await planned(Said("Made")), "redis://admin:canary@elsewhere:6379/0"
    world.users = Said("Refused")
    world.restart(replace(SETTINGS, redis_url=other))
    for _ in range(3):
        await world.step()
    assert url_of(world) == other


async def test_a_token_that_is_not_stored_yet_stays_the_same_within_a_pass_and_after_it() -> None:
    """The Redis user, the Job that downloads weights and the Secret must all be of one token."""
    world, said = World(), Said("Made")
    tokens = iter(bytes([letter]) * 32 for letter in b"abcdefgh")

    world.users = said
    world.restart(replace(SETTINGS, redis_url=URL))
    world.reconciler._new_token = lambda: next(tokens)
    for _ in range(3):
        await world.step()
    assert {token for _, token in said.kept} == {b"a" * 32}
    assert base64.b64decode(secret(world)["token"]) == b"a" * 32


async def test_a_users_end_comes_with_the_services_and_not_before() -> None:
    said = Said("Made")
    world = await planned(said)
    world.cluster.service["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    await world.step()
    assert said.gone == [], "pods that drain may use Redis"
    world.cluster.service["metadata"]["name"] = "another"
    await world.step()
    assert said.gone == [f"dropped {KEY}"]
