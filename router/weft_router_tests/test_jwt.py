"""Signed tokens: what is not from the provider, for us, in time and signed as its key says is refused."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from weft_router.auth.authenticator import Authenticator
from weft_router.auth.jwt import TokenVerifier
from weft_router.auth.key_refresh import MIN_REFRESH_S, KeyRefresh
from weft_router.auth.key_set import KeySetError, read_key_set
from weft_router.auth.principal import RateLimits
from weft_router.config import JwtConfig
from weft_router.errors import ApiError, UnauthorizedError, UnavailableError, UpstreamFailedError

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
WEAK = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 - to be refused
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
STRANGER = ed25519.Ed25519PrivateKey.generate()
NOW = 1_800_000_000.0
ALL = ("RS256", "ES256", "EdDSA")


def jwk(kid: str, public: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**public, "kid": kid, "use": "sig", **more}


RSA_JWK = jwk("rsa", RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True), alg="RS256")
EC_JWK = jwk("ec", ECAlgorithm.to_jwk(EC.public_key(), as_dict=True))
ED_JWK = jwk("ed", OKPAlgorithm.to_jwk(ED.public_key(), as_dict=True))


def document(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys or (RSA_JWK, EC_JWK, ED_JWK))}).encode()


def config(**changes: Any) -> JwtConfig:
    body = {"issuer": "https://issuer.example.com", "audience": "weft", "jwksFile": "/jwks.json", **changes}
    return JwtConfig.model_validate({key: value for key, value in body.items() if value is not None})


def verifier(**changes: Any) -> TokenVerifier:
    return TokenVerifier(config(**changes), keys=read_key_set(document(), ALL))


def claims(**changes: Any) -> dict[str, Any]:
    body = {"iss": "https://issuer.example.com", "aud": "weft", "sub": "acme", "iat": NOW - 10, "exp": NOW + 600}
    return {key: value for key, value in {**body, **changes}.items() if value is not None}


def signed(key: Any = ED, algorithm: str = "EdDSA", kid: str | None = "ed", **changes: Any) -> str:
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims(**changes), key, algorithm=algorithm, headers=headers)


def refusal(token: str, check: TokenVerifier | None = None, now: float = NOW) -> str:
    with pytest.raises(UnauthorizedError) as caught:
        (check or verifier()).verify(token, now)
    assert token.rpartition(".")[2] not in caught.value.message or not token.rpartition(".")[2]
    return caught.value.message


@pytest.mark.parametrize(("key", "algorithm", "kid"), [(RSA, "RS256", "rsa"), (EC, "ES256", "ec"), (ED, "EdDSA", "ed")])
def test_a_token_of_each_algorithm_names_its_tenant(key: Any, algorithm: str, kid: str) -> None:
    check = verifier(classClaim="tier")
    token = signed(key, algorithm, kid, tier="batch", aud=["other", "weft"])
    principal = check.verify(token, NOW)
    assert (principal.tenant, principal.id, principal.class_name) == ("acme", "acme", "batch")
    assert check.verify(token, NOW + 600) is principal, "it is remembered"
    assert check.verify(signed(key, algorithm, None), NOW).tenant == "acme", "the only key of its algorithm"


def test_the_claim_that_names_the_tenant_is_configured() -> None:
    check = verifier(tenantClaim="organisation")
    assert check.verify(signed(organisation="acme-gmbh"), NOW).tenant == "acme-gmbh"
    for value in (None, 7, "", ["a"], "a b", "line\nbreak", "x" * 129, "default"):
        assert "organisation" in refusal(signed(organisation=value), check)


def test_a_token_is_accepted_only_in_its_time_even_when_it_is_remembered() -> None:
    check = verifier(leewaySeconds=30)
    token = signed(nbf=NOW)
    assert "not valid yet" in refusal(token, check, NOW - 31)
    check.verify(token, NOW - 29)
    check.verify(token, NOW + 629)
    assert "expired" in refusal(token, check, NOW + 630)
    assert "expired" in refusal(signed(exp=NOW - 31), check)
    assert "not valid yet" in refusal(signed(iat=NOW + 31), check)
    for bad in (True, "soon", {"s": 1}, 1e15):
        assert "exp must be a time" in refusal(signed(exp=bad), check)


@pytest.mark.parametrize("name", ["exp", "iss", "aud"])
def test_a_claim_that_is_needed_may_not_miss(name: str) -> None:
    absent: dict[str, Any] = {name: None}
    assert f"no claim {name}" in refusal(signed(**absent))


def test_a_token_for_others_or_of_others_is_refused() -> None:
    assert "another audience" in refusal(signed(aud="elsewhere"))
    assert "another issuer" in refusal(signed(iss="https://issuer.example.com.evil"))
    assert "signature" in refusal(signed(STRANGER))
    tampered = signed().split(".")
    body = base64.urlsafe_b64encode(json.dumps(claims(sub="root")).encode()).rstrip(b"=").decode()
    assert "signature" in refusal(f"{tampered[0]}.{body}.{tampered[2]}")


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_none_and_shared_secrets_are_refused() -> None:
    unsigned = f"{part({'alg': 'none', 'kid': 'ed'})}.{part(claims())}."
    assert "signed with RS256" in refusal(unsigned)
    public = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for name in ("HS256", "hs256", "None", "NONE", ""):
        head = f"{part({'alg': name, 'kid': 'rsa'})}.{part(claims())}"
        mac = hmac.new(public, head.encode(), hashlib.sha256).digest()
        confused = f"{head}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
        assert "signed with RS256" in refusal(confused)


def test_a_keys_algorithm_counts_and_not_the_tokens() -> None:
    assert "no such key" in refusal(signed(kid="rsa"))
    assert "no such key" in refusal(jwt.encode(claims(), RSA, algorithm="RS256", headers={"kid": "ec"}))
    assert "must be signed with RS256 or ES256 or EdDSA" in refusal(signed(RSA, "RS512", "rsa"))
    only = verifier(algorithms=["RS256"])
    assert "must be signed with RS256" in refusal(signed(), only)
    for critical in ({"crit": ["x"]}, {"crit": ["b64"], "b64": True}):
        token = jwt.encode(claims(), ED, algorithm="EdDSA", headers={"kid": "ed", **critical})
        assert "not a JWT" in refusal(token), "extensions that are not known here"


def test_a_key_inside_a_token_is_not_believed() -> None:
    own = OKPAlgorithm.to_jwk(STRANGER.public_key(), as_dict=True)
    for headers in ({"jwk": own}, {"jwk": own, "kid": "ed"}, {"jku": "https://evil.example.com/jwks"}):
        with pytest.raises(UnauthorizedError):
            verifier().verify(jwt.encode(claims(), STRANGER, algorithm="EdDSA", headers=headers), NOW)


@pytest.mark.parametrize(
    "entry",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "o"},
        {**ED_JWK, "use": "enc"},
        {**ED_JWK, "key_ops": ["sign"]},
        {**RSA_JWK, "alg": "RS512"},
        {**RSA_JWK, "alg": "HS256"},
        {**EC_JWK, "crv": "P-384"},
        jwk("weak", RSAAlgorithm.to_jwk(WEAK.public_key(), as_dict=True)),
        jwk("private", OKPAlgorithm.to_jwk(ED, as_dict=True)),
        {"kty": "RSA", "n": "!", "e": "AQAB", "kid": "broken"},
        "text",
    ],
)
def test_keys_that_must_not_verify_are_left_out(entry: Any) -> None:
    with pytest.raises(KeySetError, match="no public signing key"):
        read_key_set(json.dumps({"keys": [entry]}).encode(), ALL)
    assert len(read_key_set(json.dumps({"keys": [entry, {**ED_JWK, "kid": "good"}]}).encode(), ALL)) == 1


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no list of keys"),
        (b'{"keys": {}}', "no list of keys"),
        (document(ED_JWK, {**EC_JWK, "kid": "ed"}), "two keys of one id"),
        (json.dumps({"keys": [ED_JWK] * 101}).encode(), "more than 100"),
    ],
)
def test_a_document_that_is_no_key_set_is_refused(raw: bytes, says: str) -> None:
    with pytest.raises(KeySetError, match=says):
        read_key_set(raw, ALL)


def test_two_keys_of_one_algorithm_need_a_name() -> None:
    keys = read_key_set(document(ED_JWK, jwk("ed2", OKPAlgorithm.to_jwk(STRANGER.public_key(), as_dict=True))), ALL)
    assert "no such key" in refusal(signed(kid=None), TokenVerifier(config(), keys=keys))


@given(st.text(max_size=300))
def test_any_text_is_refused_as_a_token(text: str) -> None:
    with pytest.raises(UnauthorizedError):
        verifier().verify(text, NOW)


CHECK = verifier()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk", "zip"]), JSON),
    st.dictionaries(st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat"]), JSON),
    st.binary(max_size=80),
)
def test_any_header_and_claims_without_the_signature_are_refused(
    header: dict[str, Any], body: dict[str, Any], signature: bytes
) -> None:
    for alg in (header.get("alg"), "EdDSA", "RS256"):
        token = f"{part({'kid': 'ed', **header, 'alg': alg})}.{part({**claims(), **body})}."
        token += base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
        with pytest.raises(UnauthorizedError):
            CHECK.verify(token, NOW)


@given(st.dictionaries(st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat"]), JSON))
def test_signed_nonsense_is_refused_or_names_a_tenant(body: dict[str, Any]) -> None:
    token = jwt.api_jws.encode(json.dumps({**claims(), **body}).encode(), ED, algorithm="EdDSA", headers={"kid": "ed"})
    try:
        principal = CHECK.verify(token, NOW)
    except UnauthorizedError:
        assert body, "what nobody changed is let in"
        return
    assert principal.tenant == {**claims(), **body}["sub"]


def test_what_is_remembered_is_bounded() -> None:
    check = TokenVerifier(config(), keys=read_key_set(document(), ALL), limit=20)
    for i in range(100):
        check.verify(signed(sub=f"tenant-{i}"), NOW)
    assert len(check._verified) <= 20


def test_a_token_of_a_key_that_was_taken_back_is_refused() -> None:
    check = verifier()
    token = signed()
    check.verify(token, NOW)
    check.reload(read_key_set(document(RSA_JWK), ALL))
    assert "no such key" in refusal(token, check)


class Provider:
    """An identity provider whose document tests change."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fetched = 0
        self.seen = asyncio.Event()
        self.answer: bytes | Exception = document(ED_JWK)

    async def fetch(self, url: str) -> bytes:
        assert url == "https://issuer.example.com/keys"
        self.fetched += 1
        self.seen.set()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def fetches(self, count: int) -> None:
        """Wait until so many were asked for."""
        async with asyncio.timeout(60):
            while self.fetched < count:
                self.seen.clear()
                await self.seen.wait()
        await asyncio.sleep(0)

    def refresh(self) -> KeyRefresh:
        settings = config(jwksFile=None, jwksUrl="https://issuer.example.com/keys")
        return KeyRefresh(settings, self.fetch, clock=lambda: self.now)


async def test_keys_are_fetched_beside_requests_and_an_unknown_one_is_looked_for_at_a_bounded_rate() -> None:
    provider = Provider()
    refresh = provider.refresh()
    check = refresh.verifier
    with pytest.raises(UnavailableError):
        check.verify(signed(), NOW)
    assert await refresh.refresh()
    assert check.verify(signed(), NOW).tenant == "acme"
    provider.now += MIN_REFRESH_S - 1
    token = signed(EC, "ES256", "ec")
    assert "no such key" in refusal(token, check), "looked for a moment ago"
    provider.now += 1
    with pytest.raises(UnavailableError):
        check.verify(token, NOW)
    provider.answer = document(ED_JWK, EC_JWK)
    task = asyncio.create_task(refresh.run())
    await provider.fetches(2)
    assert check.verify(token, NOW).tenant == "acme"
    provider.now += MIN_REFRESH_S
    with pytest.raises(UnavailableError):
        check.verify(signed(kid="no-such"), NOW)
    await provider.fetches(3)
    assert "no such key" in refusal(signed(kid="no-such"), check)
    provider.now += MIN_REFRESH_S
    other = jwt.encode(claims(), RSA, algorithm="RS256", headers={"kid": "ed"})
    assert "no such key" in refusal(other, check), "the key is known, and not for this algorithm"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    "answer",
    [
        OSError("down"),
        TimeoutError(),
        UpstreamFailedError("status"),
        b"{",
        b'{"keys": []}',
        document(EC_JWK) + b" " * 2**20,
    ],
)
async def test_an_answer_that_cannot_be_read_keeps_the_old_keys(
    answer: bytes | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    provider = Provider()
    refresh = provider.refresh()
    assert await refresh.refresh()
    provider.answer = answer
    provider.now += 25.0
    assert not await refresh.refresh()
    assert refresh.verifier.verify(signed(), NOW).tenant == "acme"
    assert caplog.records[-1].message in ("jwks_unreadable", "jwks_refused")
    assert (refresh.age(), caplog.records[-1].__dict__["keys_age_s"]) == (25.0, 25.0)
    provider.answer = document(ED_JWK)
    assert await refresh.refresh()
    assert refresh.age() == 0.0


async def test_keys_come_from_a_file_too(tmp_path: Any) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(document(ED_JWK))
    refresh = KeyRefresh(config(jwksFile=str(path)), Provider().fetch)
    assert await refresh.refresh()
    assert refresh.verifier.verify(signed(), NOW).tenant == "acme"
    path.unlink()
    assert not await refresh.refresh()
    path.symlink_to("/dev/zero")  # a file without end
    assert not await refresh.refresh()
    assert refresh.verifier.verify(signed(), NOW).tenant == "acme"


def test_no_token_is_repeated_in_an_error_or_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    authenticator = Authenticator(None, verifier())
    canary = "canary0123456789"
    tokens = [
        signed(aud=canary), signed(iss=canary), signed(sub=f"{canary} x"), signed(STRANGER, sub=canary),
        signed(kid=canary), signed(exp=canary), f"{part({'alg': canary})}.{canary}.{canary}", f"{canary}.{canary}.",
        f"{canary}.a.{canary}",
    ]  # fmt: skip
    for token in tokens:
        with pytest.raises(ApiError) as caught:
            authenticator.principal(f"Bearer {token}", NOW)
        shown = caught.value.body().decode() + repr(caught.value) + repr(caught.value.__cause__)
        assert canary not in shown
        assert not any(len(piece) > 8 and piece in shown for piece in token.split("."))
    assert canary not in repr([record.__dict__ for record in caplog.records])


def test_a_claim_limits_a_tokens_holder_as_a_line_of_keys_does() -> None:
    check = verifier(limitsClaim="limits")
    limits = {"key": "k1", "rps": 5, "tpm": 60000, "concurrent": 8, "weight": 2.5}
    found = check.verify(signed(limits=limits), NOW)
    assert (found.tenant, found.id, found.weight) == ("acme", "k1", 2.5)
    assert found.bounds == RateLimits(rps=5.0, tpm=60000.0, concurrent=8)
    assert check.verify(signed(limits={"weight": 2}), NOW).bounds is None
    assert check.verify(signed(), NOW).id == "acme"
    assert verifier().verify(signed(limits=limits), NOW).bounds is None, "only where the service reads the claim"
    for bad in ("5", [5], {"rps": "5"}, {"rps": 0}, {"rps": True}, {"concurrent": 1.5}, {"key": ""}, {"key": 7}):
        assert "claim limits" in refusal(signed(limits=bad), check)
