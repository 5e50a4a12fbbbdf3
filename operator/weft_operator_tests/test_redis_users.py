"""Redis users of services on a real server: what the user of one may do, and that users come, come back and go."""

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as ConnectionClosed

from weft_core.heartbeat import WorkerRecord, worker_key, workers_key
from weft_core.keys import derive
from weft_operator.api.objects import ServiceKey
from weft_operator.controllers.redis_users import RedisUsers, RedisUserState, _is_refusal
from weft_operator.errors import TransientError
from weft_operator.metrics.heartbeats import HeartbeatReader
from weft_operator.metrics.state_keys import StateKeys
from weft_operator.render.redis_user import COMMANDS, redis_user, service_of, url_for
from weft_operator.weights.fetch import _ProgressReporter
from weft_operator.weights.folder import ModelFolder
from weft_operator.weights.progress import progress_key
from weft_operator.weights.remote import Listing
from weft_operator_tests.guarded_redis import GuardedRedis
from weft_operator_tests.guarded_redis import guarded_redis as guarded_redis
from weft_operator_tests.samples import SETTINGS, rendered, rendering
from weft_router.state.redis_store import RedisStore
from weft_router_tests.http_kit import until
from weft_router_tests.redis_server import RedisServer
from weft_router_tests.stack import free_port

pytestmark = pytest.mark.component

VICTIM, ATTACKER = ServiceKey("team-a", "chat"), ServiceKey("team-b", "chat")
TOKENS = {VICTIM: b"v" * 32, ATTACKER: b"a" * 32}
OWNER = "11111111"


@dataclass
class Kept:
    """Users that are kept, with the pauses of their keeper cut short, and the services that there are."""

    users: RedisUsers
    there: set[ServiceKey] = field(default_factory=lambda: set(TOKENS))
    fails: bool = False


@asynccontextmanager
async def keeping(url: str, *, owner: str = OWNER, run: bool = True) -> AsyncIterator[Kept]:
    async def who() -> str:
        return owner

    async def is_there(service: ServiceKey) -> bool:
        if kept.fails:
            raise TransientError("no answer")
        return service in kept.there

    async def sleep(_: float) -> None:
        await asyncio.sleep(0.01)

    kept = Kept(RedisUsers(url, owner=who, exists=is_there, sleep=sleep))
    task = asyncio.create_task(kept.users.run()) if run else None
    try:
        yield kept
    finally:
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await kept.users.close()


def secret_url(service: ServiceKey, url: str, *, shared: bool = False) -> str:
    """Return the Redis URL that the pods of a service get."""
    base = replace(rendering(), key=service, settings=replace(SETTINGS, redis_url=url), shares_redis_user=shared)
    (secret,) = (item for item in rendered(base, TOKENS[service]) if item["kind"] == "Secret")
    (found,) = (value for name, value in secret["data"].items() if name.startswith("redis-url-"))
    return base64.b64decode(found).decode()


@asynccontextmanager
async def client(url: str) -> AsyncIterator["Redis"]:
    found = Redis.from_url(url, decode_responses=True)
    try:
        yield found
    finally:
        await found.aclose()


async def command_of(sender: "Redis", *words: str) -> object:
    answer: object = await sender.execute_command(*words)  # type: ignore[no-untyped-call]
    return answer


def user_state(kept: Kept) -> RedisUserState:
    return kept.users.state


def record(worker: str) -> WorkerRecord:
    return WorkerRecord(worker, "decode", "http://10.0.0.1:8080", 1, 1000, ready=True)


async def test_a_service_can_neither_read_nor_write_nor_delete_what_another_one_keeps(
    guarded_redis: GuardedRedis,
) -> None:
    async with keeping(guarded_redis.url) as kept:
        for service, token in TOKENS.items():
            await kept.users.ensure(service, token)
        victims, own = worker_key("team-a", "chat", "d0"), worker_key("team-b", "chat", "d0")
        async with client(secret_url(VICTIM, guarded_redis.url)) as victim:
            await victim.set(victims, "heartbeat")
            await victim.sadd(workers_key("team-a", "chat"), "d0")
        async with client(secret_url(ATTACKER, guarded_redis.url)) as attacker:
            await attacker.set(own, "mine")
            for attack in (
                ("SET", victims, "evil"),
                ("SADD", workers_key("team-a", "chat"), "evil"),
                ("GETRANGE", victims, "0", "9"),
                ("TYPE", victims),
                ("WATCH", own, victims),
                ("DEL", victims),
                ("UNLINK", own, victims),
                ("SSCAN", workers_key("team-a", "chat"), "0"),
                ("SREM", workers_key("team-a", "chat"), "d0"),
                ("SET", "weft:users:" + OWNER, "x"),
                ("SET", "weft:{team-b/chat", "x"),
            ):
                with pytest.raises(NoPermissionError):
                    await command_of(attacker, *attack)
        async with client(guarded_redis.url) as admin:
            assert await admin.get(victims) == "heartbeat"
            assert await admin.smembers(workers_key("team-a", "chat")) == {"d0"}


@pytest.mark.parametrize(
    "command",
    [
        *("KEYS *", "SCAN 0", "FLUSHALL", "FLUSHDB", "CONFIG GET *", "CONFIG SET maxmemory 1", "ACL LIST"),
        *("ACL WHOAMI",),
        *("ACL SETUSER x on", "CLIENT LIST", "CLIENT KILL ID 1", "SHUTDOWN", "MONITOR", "SAVE"),
        *("INFO", "PUBLISH c m", "SUBSCRIBE c", "RANDOMKEY", "DBSIZE", "SWAPDB 0 1", "REPLICAOF a 1", "SCRIPT FLUSH"),
        *("SCRIPT KILL", "SLOWLOG GET", "MODULE LIST", "FUNCTION LIST", "COMMAND", "MIGRATE h 1 k 0 1", "EVAL 1 0"),
        *(
            "SCRIPT LOAD 1",
            "SCRIPT EXISTS a",
            "EVALSHA a 0",
            "EVAL_RO 1 0",
            "FCALL f 0",
            "GET a",
            "MGET a",
            "EXPIRE a 1",
        ),
        *("RENAME a b", "COPY a b", "OBJECT ENCODING a", "DUMP a", "BGREWRITEAOF", "LATENCY LATEST", "ROLE"),
    ],
)
async def test_a_services_user_gives_no_command_beyond_what_routers_need(
    guarded_redis: GuardedRedis, command: str
) -> None:
    async with keeping(guarded_redis.url, run=False) as kept:
        await kept.users.ensure(ATTACKER, TOKENS[ATTACKER])
        async with client(secret_url(ATTACKER, guarded_redis.url)) as attacker:
            with pytest.raises(NoPermissionError):
                await command_of(attacker, *command.split())


async def test_without_a_password_nobody_may_do_more_than_probes_do(guarded_redis: GuardedRedis) -> None:
    async with client(guarded_redis.plain_url) as stranger:
        with pytest.raises(AuthenticationError):
            await stranger.set("weft:{team-a/chat}:worker:evil", "x")
    async with client(guarded_redis.plain_url.replace("//", "//probe:any@")) as probe:
        assert await probe.ping()
        for command in ("GET weft:{team-a/chat}:workers", "INFO", "CONFIG GET *", "ACL WHOAMI", "SELECT 1"):
            with pytest.raises(NoPermissionError):
                await command_of(probe, *command.split())


def store_of(service: ServiceKey, url: str) -> RedisStore:
    key = derive(TOKENS[service], "state")
    return RedisStore(url, namespace=service.namespace, service=service.name, key=key)


async def read_secret(service: ServiceKey, _name: str) -> Mapping[str, str | Mapping[str, str]]:
    return {"data": {"token": base64.b64encode(TOKENS[service]).decode()}}


async def test_all_that_a_router_and_a_download_do_is_allowed_and_no_more(
    guarded_redis: GuardedRedis, tmp_path: Path
) -> None:
    async with keeping(guarded_redis.url, run=False) as kept:
        await kept.users.ensure(VICTIM, TOKENS[VICTIM])
    with guarded_redis.admin() as admin:
        admin.config_resetstat()
    url = secret_url(VICTIM, guarded_redis.url)
    # In another database than the first one the client also selects.
    for store in (store_of(VICTIM, place) for place in (url, url[:-1] + "3")):
        await store.heartbeat(record("d0"))
        assert [item.worker for item in (await store.snapshot()).workers] == ["d0"]
        await store.demand()
        assert await store.bind("s", "d0", replaces="", ttl_s=60) == "d0"
        assert await store.bind("t", "d0", replaces="", ttl_s=60) == "d0"
        await store.bind_all([("u", "d0"), ("v", "d0")], ttl_s=60)
        await store.put_head("h", "s", ttl_s=60)
        assert await store.sessions_of(["h", "none"]) == ["s", None]
        assert await store.unbind("s") == "d0"
        assert await store.bind("u", "d1", replaces="d0", ttl_s=60) == "d1"
        # As where another coordinator was faster: what is there stays.
        assert await store._replace(store._order("u", "d2", "", 60)) == "d1"
        await store.unbind_all(["u"], ["h"])
        await store.withdraw("d0")
        await store._list_anew()
        await store.close()
    reporter = _ProgressReporter(
        ModelFolder(tmp_path, "team-a/chat/model"),
        Listing(()),
        {"WEFT_REDIS_URL": url, "POD_NAME": "pod"},
    )
    with guarded_redis.admin() as admin:
        with reporter:
            await until(lambda: admin.exists(progress_key("team-a", "chat", "pod")) == 1)
        told = cast(dict[str, object], admin.info("commandstats"))
        sent = {name.removeprefix("cmdstat_") for name in told}
        ours = {"config|resetstat", "exists", "info", "hello", "auth", "client|setinfo"}
        assert sent - ours == set(COMMANDS) - {"ping"}, "PING is for whoever looks whether a URL is good"
        assert "weft." not in str(admin.acl_log()), "nothing was refused"


@pytest.mark.parametrize("file", [True, False], ids=["with its file of users", "without one"])
async def test_users_are_back_soon_after_redis_lost_them(guarded_redis: GuardedRedis, file: bool) -> None:
    async with keeping(guarded_redis.url) as kept:
        await kept.users.ensure(VICTIM, TOKENS[VICTIM])
        name = redis_user(VICTIM, TOKENS[VICTIM]).name
        guarded_redis.stop()
        guarded_redis.start(file=file)
        if file:
            assert guarded_redis.users() == {name}, "the file alone brings them back, also without an operator"
        await until(lambda: guarded_redis.users() == {name}, seconds=30)
        async with client(secret_url(VICTIM, guarded_redis.url)) as router:
            assert await router.ping()


async def test_a_cancellation_that_a_broken_connection_hides_ends_it_all_the_same(
    guarded_redis: GuardedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    polled = asyncio.Event()

    async def info(_section: str) -> None:
        polled.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        raise ConnectionClosed("the server closed the connection")

    async with keeping(guarded_redis.url, run=False) as kept:
        monkeypatch.setattr(kept.users._redis, "info", info)
        task = asyncio.create_task(kept.users.run())
        await polled.wait()
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.cancelled()


async def test_a_connection_stays_when_users_are_written_again(guarded_redis: GuardedRedis) -> None:
    async with keeping(guarded_redis.url, run=False) as kept:
        await kept.users.ensure(VICTIM, TOKENS[VICTIM])
        async with client(secret_url(VICTIM, guarded_redis.url)) as router:
            connection = await router.connection_pool.get_connection()  # type: ignore[no-untyped-call]
            kept.users._written.clear()
            await kept.users.ensure(VICTIM, TOKENS[VICTIM])
            await connection.send_command("PING")
            assert await connection.read_response() in (b"PONG", "PONG")
            await router.connection_pool.release(connection)


async def test_a_users_end_is_that_of_its_service_or_of_its_token(guarded_redis: GuardedRedis) -> None:
    async with keeping(guarded_redis.url) as kept:
        for service, token in TOKENS.items():
            await kept.users.ensure(service, token)
        kept.users.delete(ATTACKER)
        await until(lambda: guarded_redis.users() == {redis_user(VICTIM, TOKENS[VICTIM]).name})
        await kept.users.ensure(VICTIM, b"n" * 32)
        await until(lambda: guarded_redis.users() == {redis_user(VICTIM, b"n" * 32).name})
        kept.users.release(VICTIM)
        with guarded_redis.admin() as admin:
            await until(lambda: admin.smembers(f"weft:users:{OWNER}") == set())
    assert guarded_redis.users() == {redis_user(VICTIM, b"n" * 32).name}, "another operator looks after it"


async def test_users_of_services_deleted_while_no_operator_ran_are_swept_and_no_others(
    guarded_redis: GuardedRedis,
) -> None:
    strangers = redis_user(ServiceKey("team-c", "chat"), b"c" * 32)
    async with keeping(guarded_redis.url, owner="22222222", run=False) as other:
        await other.users.ensure(strangers.service, b"c" * 32)
    with guarded_redis.admin() as admin:
        admin.acl_setuser("somebody", enabled=True)
    async with keeping(guarded_redis.url, run=False) as before:
        for service, token in TOKENS.items():
            await before.users.ensure(service, token)
    async with keeping(guarded_redis.url, run=False) as kept:
        await kept.users.ensure(VICTIM, TOKENS[VICTIM])
        kept.there, kept.fails = {VICTIM}, True
        await kept.users.sweep()
        assert redis_user(ATTACKER, TOKENS[ATTACKER]).name in guarded_redis.users(), "the API server did not answer"
        kept.fails = False
        await kept.users.sweep()
    assert guarded_redis.users() == {redis_user(VICTIM, TOKENS[VICTIM]).name, strangers.name}
    with guarded_redis.admin() as admin:
        assert "somebody" in admin.acl_users()


async def test_an_operator_without_the_right_to_make_users_says_so_and_goes_on_when_it_gets_it(
    guarded_redis: GuardedRedis,
) -> None:
    with guarded_redis.admin() as admin:
        admin.acl_setuser("small", enabled=True, passwords="+word", keys=["weft:*"], categories=["+@all", "-@admin"])
    url = guarded_redis.plain_url.replace("//", "//small:word@")
    async with keeping(url, run=False) as kept:
        assert user_state(kept) == "Unknown"
        await kept.users.ensure(VICTIM, TOKENS[VICTIM])
        assert user_state(kept) == "Refused"
        assert "permission" in kept.users.refusal
        assert "#" not in kept.users.refusal, "the hash of the password is not told"
        with guarded_redis.admin() as admin:
            admin.acl_setuser("small", enabled=True, commands=["+acl", "+info"])
        kept.users._retry_at = 0.0
        await kept.users.ensure(VICTIM, TOKENS[VICTIM])
        assert (user_state(kept), kept.users.refusal) == ("Made", "")


async def test_the_rights_that_the_guide_gives_an_external_operator_suffice(guarded_redis: GuardedRedis) -> None:
    guide = (Path(__file__).parents[2] / "docs/install.md").read_text()
    (line,) = (line for line in guide.splitlines() if line.startswith("ACL SETUSER"))
    with guarded_redis.admin() as admin:
        admin.execute_command(*line.split())  # type: ignore[no-untyped-call]
    async with keeping(guarded_redis.plain_url.replace("//", "//weft:PASSWORD@"), run=False) as kept:
        for service, token in TOKENS.items():
            await kept.users.ensure(service, token)
        await kept.users._check_restart()
        assert kept.users._run_id is not None
        kept.users.delete(ATTACKER)
        kept.there = set()
        await kept.users.sweep()
        assert guarded_redis.users() == {redis_user(VICTIM, TOKENS[VICTIM]).name}
        store = store_of(VICTIM, secret_url(VICTIM, guarded_redis.url))
        await store.heartbeat(record("d0"))
        await store.close()
        keys = StateKeys(read_secret, clock=lambda: 0.0)
        beats = HeartbeatReader(guarded_redis.plain_url.replace("//", "//weft:PASSWORD@"), keys=keys)
        assert set(await beats.read(VICTIM)) == {"d0"}
        await beats.close()
    with guarded_redis.admin() as admin:
        assert admin.acl_log() == []


async def test_a_server_without_the_command_is_a_refusal_and_one_that_is_away_is_none(
    guarded_redis: GuardedRedis, tmp_path: Path
) -> None:
    renamed = GuardedRedis(free_port(), tmp_path, more=("--rename-command", "ACL", ""))
    guarded_redis.stop()
    renamed.start()
    try:
        async with keeping(renamed.url, run=False) as kept:
            await kept.users.ensure(VICTIM, TOKENS[VICTIM])
            assert user_state(kept) == "Refused"
    finally:
        renamed.stop()
    async with keeping(renamed.url, run=False) as kept:
        await kept.users.ensure(VICTIM, TOKENS[VICTIM])
        assert user_state(kept) == "Unknown"


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lfu"])
async def test_a_redis_that_a_service_filled_refuses_nothing(guarded_redis: GuardedRedis, policy: str) -> None:
    """Else one service could have all others get the operator's URL."""
    async with keeping(guarded_redis.url, run=False) as kept:
        await kept.users.ensure(ATTACKER, TOKENS[ATTACKER])
        with guarded_redis.admin() as admin:
            admin.config_set("maxmemory", "4mb")
            admin.config_set("maxmemory-policy", policy)
        async with client(secret_url(ATTACKER, guarded_redis.url)) as attacker:
            for i in range(100):
                with suppress(OutOfMemoryError):
                    await attacker.set(worker_key("team-b", "chat", f"x{i}"), "x" * 100_000)
        with guarded_redis.admin() as admin:
            if policy != "noeviction":
                admin.config_set("maxmemory", "1")  # as with the memory that buffers and users take: it is in no key
            with pytest.raises(OutOfMemoryError):
                admin.sadd("weft:users:other", "x" * 100_000)
        await kept.users.ensure(VICTIM, TOKENS[VICTIM])
        assert (user_state(kept), kept.users.refusal) == ("Made", "")
        assert redis_user(VICTIM, TOKENS[VICTIM]).name in guarded_redis.users(), "a user takes no key"
        with guarded_redis.admin() as admin:
            admin.config_set("maxmemory", "0")
            kept.users._written.clear()
            await kept.users.ensure(VICTIM, TOKENS[VICTIM])
            names = {redis_user(service, token).name for service, token in TOKENS.items()}
            assert admin.smembers(f"weft:users:{OWNER}") == names, "it is recorded once there is room"


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (NoPermissionError("this user has no permissions to run the 'acl|setuser' command"), True),
        (ResponseError("unknown command 'ACL', with args beginning with: 'SETUSER'"), True),
        (ResponseError("ACL is disabled"), True),
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), False),
        (ResponseError("OOM command not allowed when used memory > 'maxmemory'."), False),
        (ResponseError("MISCONF Redis is configured to save RDB snapshots: commands are disabled"), False),
        (ResponseError("BUSY running a script. Only SCRIPT KILL is allowed, others are not allowed"), False),
        (ReadOnlyError("not allowed against a read only replica"), False),
        (ResponseError("LOADING not allowed"), False),
        (ResponseError("MASTERDOWN not allowed"), False),
    ],
)
def test_only_what_tells_of_a_right_is_a_refusal(answer: Exception, refused: bool) -> None:
    assert _is_refusal(answer) is refused


async def test_a_redis_without_passwords_gets_users_too(redis_server: RedisServer) -> None:
    async with keeping(redis_server.url, run=False) as kept:
        await kept.users.ensure(VICTIM, TOKENS[VICTIM])
        assert user_state(kept) == "Made", "the file that is missing is no failure"
        async with client(secret_url(VICTIM, redis_server.url)) as router:
            with pytest.raises(NoPermissionError):
                await router.getrange(worker_key("team-b", "chat", "d0"), 0, 9)


def test_names_and_urls() -> None:
    user = redis_user(VICTIM, TOKENS[VICTIM])
    assert service_of(user.name) == VICTIM
    assert {service_of(name) for name in ("default", "operator", "weft.", "weft.a", "weft.a.b", "weft..b.c")} == {None}
    assert user.password not in repr(user)
    url = url_for("rediss://admin:wo%40rd@[fd00::1]:6380/2?ssl_cert_reqs=none&password=x&username=y", user)
    assert url == f"rediss://{user.name}:{user.password}@[fd00::1]:6380/2?ssl_cert_reqs=none"
    assert redis_user(VICTIM, TOKENS[ATTACKER]).name != user.name


def test_a_secret_holds_its_own_user_and_nothing_of_the_operators() -> None:
    url = "rediss://admin:canary@redis.example.com:6379/0"
    assert "canary" not in secret_url(VICTIM, url)
    assert "admin" not in secret_url(VICTIM, url)
    assert secret_url(VICTIM, url) != secret_url(ATTACKER, url)
    assert secret_url(VICTIM, url, shared=True) == url
