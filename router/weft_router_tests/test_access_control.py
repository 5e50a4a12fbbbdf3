"""The front door as a whole: keys, tokens and certificate come from the settings, and change with their files."""

import asyncio
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from jwt.algorithms import OKPAlgorithm

from weft_router.auth.access_control import AccessControl
from weft_router.config import ConfigError, Flags, Settings, load
from weft_router.errors import UnauthorizedError
from weft_router.outbound import AddressRefusedError
from weft_router_tests.test_config_sections import body
from weft_router_tests.test_tls import install, write_pair

ED = ed25519.Ed25519PrivateKey.generate()


def settings(tmp_path: Path, env: dict[str, str] | None = None, **sections: Any) -> Settings:
    (tmp_path / "router.json").write_text(json.dumps(body(**sections)))
    (tmp_path / "token").write_text("sixteen-characters-or-more")
    flags = Flags(
        role="coordinator", config=tmp_path / "router.json", listen="127.0.0.1:0", engine_url="", advertise=None,
        drain_seconds=1.0, health_listen="127.0.0.1:8081",
    )  # fmt: skip
    return load(flags, {"WEFT_TOKEN_FILE": str(tmp_path / "token"), **(env or {})})


def test_without_settings_the_door_is_open_and_plain(tmp_path: Path) -> None:
    found = settings(tmp_path)
    access = AccessControl(found)
    assert access.authenticator.principal(None, 0.0).tenant == "default"
    assert (access.tls, access.work()) == (None, [])
    assert (found.health_host, found.health_port) == ("127.0.0.1", 8081)
    access.reload()


async def test_keys_and_tokens_are_both_let_in(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one-key tenant=acme\n")
    public = OKPAlgorithm.to_jwk(ED.public_key(), as_dict=True)
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [{**public, "kid": "ed"}]}))
    provider = {"issuer": "https://i.example.com", "audience": ["weft"], "jwksFile": str(tmp_path / "jwks.json")}
    access = AccessControl(settings(tmp_path, auth={"apiKeysFile": str(tmp_path / "keys"), "jwt": provider}))
    work = [asyncio.create_task(coroutine) for coroutine in access.work()]
    claims = {"iss": "https://i.example.com", "aud": "weft", "sub": "by-token", "exp": time.time() + 60}
    token = jwt.encode(claims, ED, algorithm="EdDSA", headers={"kid": "ed"})
    tenant = ""
    async with asyncio.timeout(60):
        while not tenant:
            try:
                tenant = access.authenticator.principal(f"Bearer {token}", time.time()).tenant
            except Exception:  # noqa: BLE001 - until the keys are read
                await asyncio.sleep(0.01)
    assert tenant == "by-token"
    assert access.authenticator.principal("Bearer one-key", time.time()).tenant == "acme"
    for wrong in (None, "Bearer two-key", f"Bearer {token}x"):
        with pytest.raises(UnauthorizedError):
            access.authenticator.principal(wrong, time.time())
    (tmp_path / "keys").write_text("two-key tenant=acme\n")
    access.reload()
    assert access.authenticator.principal("Bearer two-key", time.time()).tenant == "acme"
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)


def test_a_door_that_cannot_be_locked_is_not_opened(tmp_path: Path) -> None:
    certificate, _ = write_pair(tmp_path, "one.example.com")
    _, key = write_pair(tmp_path, "two.example.com")
    with pytest.raises(ConfigError, match=r"certificate's own"):
        AccessControl(settings(tmp_path, tls={"certFile": str(certificate), "keyFile": str(key)}))
    with pytest.raises(ConfigError, match="WEFT_API_KEYS_FILE"):
        AccessControl(settings(tmp_path, auth={"apiKeysFile": "/nowhere"}))
    pair = install(tmp_path, "one.example.com")
    assert AccessControl(settings(tmp_path, tls={"certFile": pair.cert_file, "keyFile": pair.key_file})).tls is not None


@pytest.mark.component
def test_a_router_without_tokens_does_not_load_cryptography() -> None:
    code = "import sys, weft_router.auth.access_control; print(sorted({'jwt', 'cryptography'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("role", "refused"), [("coordinator", AddressRefusedError), ("standalone", ConnectionError)])
async def test_only_who_runs_a_router_by_hand_may_have_keys_on_its_own_machine(
    tmp_path: Path, role: Literal["coordinator", "standalone"], refused: type[OSError]
) -> None:
    provider = {"issuer": "https://i.example.com", "audience": ["weft"], "jwksUrl": "https://localhost:9/keys"}
    found = dataclasses.replace(settings(tmp_path, auth={"jwt": provider}), role=role)
    refresh = AccessControl(found)._refresh
    assert refresh is not None
    with pytest.raises(OSError) as caught:  # noqa: PT011 - what it is about comes next
        await refresh._fetch("https://localhost:9/keys")
    assert isinstance(getattr(caught.value, "reason", caught.value), refused)
