"""Who comes in by a gateway, and how services know: by the client's own credentials, or by a token of the gateway's."""

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from time import time
from typing import Any

import pytest

from weft_router.auth.jwt import TokenVerifier
from weft_router.auth.key_set import read_key_set
from weft_router.auth.principal import Principal, RateLimits
from weft_router.config import ConfigError, JwtConfig
from weft_router.config.gateway import HopConfig
from weft_router.errors import UnauthorizedError
from weft_router.gateway import hop_key
from weft_router.gateway.hop_token import HopTokens
from weft_router_tests.gateway_kit import gateway, listed, recorder
from weft_router_tests.stack import MODEL, Stack, router_json
from weft_router_tests.test_tls import write_pair

ACME = Principal("acme", "k1", class_name="gold")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Give a folder with a key and its public document."""
    folder = tmp_path / "hop"
    hop_key.write(folder)
    return folder


def hop(folder: Path, **more: Any) -> HopConfig:
    return HopConfig.model_validate({"keyFile": str(folder / "key.pem"), **more})


def trusting(folder: Path, audience: str = "team-a/llama", **more: Any) -> dict[str, Any]:
    """Return what a service says of the gateway in its spec.coordinator.auth.jwt, as router.json has it."""
    return {
        "issuer": "weft-gateway", "audience": audience, "jwksFile": str(folder / "jwks.json"), "classClaim": "class",
        "limitsClaim": "limits", **more,
    }  # fmt: skip


def verified(folder: Path, token: str, now: float, audience: str = "team-a/llama") -> Principal:
    config = JwtConfig.model_validate(trusting(folder, audience))
    verifier = TokenVerifier(config, keys=read_key_set((folder / "jwks.json").read_bytes(), config.algorithms))
    return verifier.verify(token, now)


def test_a_token_names_tenant_and_class_to_one_service_for_some_minutes(keys: Path) -> None:
    tokens, now = HopTokens(hop(keys)), 1_800_000_000.0
    token = tokens.of(ACME, "team-a/llama", now)
    found = verified(keys, token, now)
    assert (found.tenant, found.class_name) == ("acme", "gold")
    with pytest.raises(UnauthorizedError, match="another audience"):
        verified(keys, token, now, audience="team-b/llama")
    with pytest.raises(UnauthorizedError, match="expired"):
        verified(keys, token, now + 331)
    assert verified(keys, tokens.of(Principal("acme", "k1"), "team-a/llama", now), now).class_name == ""


def test_a_token_is_sent_again_for_half_of_its_life(keys: Path) -> None:
    tokens, now = HopTokens(hop(keys, seconds=100)), 1_800_000_000.0
    first = tokens.of(ACME, "a/b", now)
    assert tokens.of(ACME, "a/b", now + 49) == first
    assert tokens.of(ACME, "a/c", now + 49) != first
    later = tokens.of(ACME, "a/b", now + 51)
    assert later != first
    assert verified(keys, later, now + 150, audience="a/b").tenant == "acme"


def test_another_key_is_used_when_its_file_changed_and_a_bad_one_is_not(keys: Path, tmp_path: Path) -> None:
    tokens, now = HopTokens(hop(keys)), 1_800_000_000.0
    first = tokens.of(ACME, "team-a/llama", now)
    (keys / "key.pem").write_text("no key")
    tokens.reload()
    assert tokens.of(ACME, "team-a/llama", now) == first
    other = tmp_path / "other"
    hop_key.write(other)
    (keys / "key.pem").write_bytes((other / "key.pem").read_bytes())
    tokens.reload()
    assert verified(other, tokens.of(ACME, "team-a/llama", now), now).tenant == "acme"


def test_keys_of_another_kind_are_refused_with_the_fix(tmp_path: Path) -> None:
    path, other = tmp_path / "key.pem", write_pair(tmp_path, "other")[1].read_text()
    for text, why in (("no key", "no unencrypted private key"), (other, "of another kind"), (None, "cannot be read")):
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        with pytest.raises(ConfigError, match=why):
            HopTokens(hop(tmp_path))


def test_the_command_writes_a_secret_key_and_a_public_document_and_keeps_a_key_that_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    for _ in range(2):
        words = [sys.executable, "-m", "weft_router.gateway.hop_key", str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
        assert "key.pem" in done.stdout
        document = json.loads((folder / "jwks.json").read_text())
    assert (folder / "key.pem").stat().st_mode & 0o077 == 0
    assert "d" not in document["keys"][0]
    token = HopTokens(hop(folder)).of(ACME, "team-a/llama", time())
    assert verified(folder, token, time()).tenant == "acme"


def test_what_a_key_may_ask_for_goes_along(keys: Path) -> None:
    tokens, now = HopTokens(hop(keys)), 1_800_000_000.0
    bounds = RateLimits(rps=5.0, tpm=60000.0, concurrent=8)
    for sent in (Principal("acme", "k1", bounds=bounds, weight=3.0), Principal("acme", "k2")):
        assert verified(keys, tokens.of(sent, "team-a/llama", now), now) == sent


@pytest.fixture
async def closed(tmp_path: Path, keys: Path) -> AsyncIterator[Stack]:
    """Give a service that knows the gateway and nobody else."""
    folder = tmp_path / "llama"
    folder.mkdir()
    made = Stack(folder, "standalone", config=router_json())
    made.config["auth"] = {"jwt": trusting(keys)}
    yield await made.up(prefill=0)
    await asyncio.wait_for(made.close(), 15)


def locked(tmp_path: Path, keys: Path) -> dict[str, Any]:
    """Return what a gateway with API keys has in its file."""
    path = tmp_path / "api-keys"
    path.write_text("sk-acme tenant=acme\nsk-other\nsk-slow tenant=slow concurrent=1 rps=0.01\n")
    return {"auth": {"apiKeysFile": str(path)}, "hop": {"keyFile": str(keys / "key.pem")}}


@pytest.mark.component
async def test_a_gateway_with_keys_names_the_tenant_and_keeps_the_key(
    tmp_path: Path, keys: Path, closed: Stack
) -> None:
    async with gateway(tmp_path / "gateway", listed(closed.front), **locked(tmp_path, keys)) as front:
        for headers in (None, {"Authorization": "Bearer sk-wrong"}):
            answer = await front.send(headers=headers)
            assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_api_key")
            assert (await front.send("/v1/models", method="GET", headers=headers)).status == 401
        for headers in ({"Authorization": "Bearer sk-acme"}, {"X-Api-Key": "sk-other"}):
            assert (await front.send(headers=headers)).status == 200
        salts = [body["cache_salt"] for body in closed.engines["d0"].seen]
        assert len(set(salts)) == 2, "services keep the tenants of the gateway's keys apart"
        slow = {"Authorization": "Bearer sk-slow"}
        answers = [await front.send(headers=slow) for _ in range(2)]
        assert [answer.status for answer in answers] == [200, 429], "services count the rates of the gateway's keys"
        assert (await closed.chat([{"role": "user", "content": "hi"}])).status == 401, "only the gateway comes in"
        sneaky = {"Authorization": "Bearer sk-acme", "X-Weft-Tenant": "other"}
        assert (await front.send(headers=sneaky)).status == 200
        assert closed.engines["d0"].seen[-1]["cache_salt"] == salts[0], "no header names a tenant"


@pytest.mark.component
async def test_no_service_sees_a_clients_key(tmp_path: Path, keys: Path) -> None:
    async with recorder() as made, gateway(tmp_path / "g", listed(made.url), **locked(tmp_path, keys)) as front:
        for headers in ({"Authorization": "Bearer sk-acme"}, {"X-Api-Key": "sk-acme"}):
            assert (await front.send(headers=headers)).status == 200
            shown = made.seen[-1][2]
            assert "x-api-key" not in shown
            assert "sk-acme" not in str(shown)
            scheme, _, token = shown["authorization"].partition(" ")
            assert (scheme, verified(keys, token, time()).tenant) == ("Bearer", "acme")


@pytest.mark.component
async def test_a_service_that_does_not_know_the_gateway_is_no_fault_of_the_client(
    tmp_path: Path, keys: Path, closed: Stack
) -> None:
    other = listed(closed.front, namespace="team-b")
    async with gateway(tmp_path / "gateway", other, **locked(tmp_path, keys)) as front:
        answer = await front.send(headers={"Authorization": "Bearer sk-acme"})
        error = answer.json["error"]
        assert (answer.status, error["code"]) == (502, "gateway_not_accepted")
        assert "team-b/llama" in error["message"]
        assert "spec.coordinator.auth.jwt" in error["message"]
        assert await front.count("weft_router_gateway_failures_total", reason="refused") == 1


@pytest.mark.component
async def test_without_keys_at_the_gateway_services_check_those_of_clients(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    path = tmp_path / "keys"
    path.write_text("sk-mine\n")
    made = Stack(folder, "standalone", config=router_json())
    await made.up(prefill=0, keys=path)
    async with gateway(tmp_path / "gateway", listed(made.front)) as front:
        assert (await front.send()).status == 401
        assert (await front.send(headers={"Authorization": "Bearer sk-mine"})).status == 200
        assert (await front.send(headers={"X-Api-Key": "sk-mine"})).status == 200
        names = [entry["id"] for entry in (await front.send("/v1/models", method="GET")).json["data"]]
        assert names == [MODEL], "names of models are no secret of a gateway without keys"
    await asyncio.wait_for(made.close(), 15)


@pytest.mark.component
async def test_services_with_tls_are_verified_by_the_given_authority(tmp_path: Path) -> None:
    certificate, key = write_pair(tmp_path, "localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with recorder(tls=context) as made:
        async with gateway(tmp_path / "g1", listed(made.url), upstreamCaFile=str(certificate)) as front:
            assert (await front.send()).status == 200
        async with gateway(tmp_path / "g2", listed(made.url)) as front:
            assert (await front.send()).status == 503
    with pytest.raises(ConfigError, match="upstreamCaFile"):
        async with gateway(tmp_path / "g3", upstreamCaFile=str(key)):
            pass
