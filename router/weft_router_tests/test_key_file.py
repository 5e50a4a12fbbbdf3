"""Files of API keys: what a line may say, that a broken line refuses the file, and that no message repeats a key."""

import hashlib
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_router.auth.authenticator import ApiKeys, Authenticator
from weft_router.auth.key_file import KeyFileError, digest, parse
from weft_router.auth.principal import ANYONE, RateLimits
from weft_router.config import ConfigError
from weft_router.errors import UnauthorizedError
from weft_router.http.head import CredentialCache

CANARY = "sk-canary-0123456789"
HASHED = hashlib.sha256(CANARY.encode()).hexdigest()


def test_a_line_holds_a_key_or_its_digest_and_what_its_holder_may_do() -> None:
    callers = parse(
        "# the team's keys\n\n  plain-key  \n"
        f"sha256:{HASHED.upper()} tenant=acme weight=2.5 class=batch rps=5 tpm=6e4\n"
        "other tenant=acme concurrent=8\n",
        classes={"default", "batch"},
    )
    plain, hashed, other = callers[digest("plain-key")], callers[digest(CANARY)], callers[digest("other")]
    assert plain.tenant == plain.id == hashlib.sha256(b"plain-key").hexdigest()[:16]
    assert (plain.bounds, plain.weight, plain.class_name) == (None, None, "")
    assert (hashed.tenant, hashed.weight, hashed.class_name) == ("acme", 2.5, "batch")
    assert hashed.bounds == RateLimits(rps=5.0, tpm=60_000.0)
    assert other.tenant == hashed.tenant
    assert other.id != hashed.id, "rates are counted by key"
    assert other.bounds == RateLimits(concurrent=8)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f"{CANARY} {CANARY}", "only tenant=…"),
        (f"{CANARY} tenant=", "only tenant=…"),
        (f"{CANARY} colour=red", "only tenant=…"),
        (f"{CANARY} tenant=a tenant=b", "tenant: is given twice"),
        (f"{CANARY} tenant=default", "tenant: needs 1 to 128"),
        (f"{CANARY} tenant={'a' * 129}", "tenant: needs 1 to 128"),
        (f"{CANARY} tenant=caf\u00e9", "tenant: needs 1 to 128"),
        (f"{CANARY} class=gold", "class: is not one of batch, default"),
        (f"{CANARY} rps=0", "rps: needs a number above 0"),
        (f"{CANARY} rps=nan", "rps: needs a number above 0"),
        (f"{CANARY} tpm=inf", "tpm: needs a number above 0"),
        (f"{CANARY} weight=-1", "weight: needs a number above 0"),
        (f"{CANARY} weight=heavy", "weight: needs a number above 0"),
        (f"{CANARY} concurrent=1.5", "concurrent: needs a whole number"),
        (f"{CANARY}\n{CANARY}", "line 2: this key is on an earlier line too"),
        (f"{CANARY}\nsha256:{HASHED}", "line 2: this key is on an earlier line too"),
        (f"{CANARY} tenant=a weight=1\nb tenant=a weight=2", "line 2: weight: another key"),
        (CANARY + "\u00e9", "line 1: a key has visible ASCII characters only"),
        ("\ufeff" + CANARY, "line 1: a key has visible ASCII characters only"),
        (CANARY + "\x07", "line 1: a key has visible ASCII characters only"),
        ("sha256:" + CANARY, "line 1: sha256: needs 64 hexadecimal digits"),
        (CANARY * 40, "at most 512 characters"),
    ],
)
def test_a_line_that_is_not_understood_is_named_and_not_shown(line: str, says: str) -> None:
    with pytest.raises(KeyFileError, match=says) as caught:
        parse(line, classes={"default", "batch"})
    assert str(caught.value).startswith("line ")
    assert CANARY not in str(caught.value)


@given(st.text(max_size=200))
def test_any_text_is_either_understood_or_refused(text: str) -> None:
    try:
        callers = parse(text)
    except KeyFileError:
        return  # any other exception fails the test
    words = [line.split() for line in text.splitlines()]
    assert len(callers) == sum(bool(line) and not line[0].startswith("#") for line in words)


WORD = st.from_regex(r"[!-~]{1,20}", fullmatch=True).filter(lambda w: not w.startswith(("#", "sha256:")))


@given(st.lists(WORD, unique=True, max_size=20), st.data())
def test_every_key_of_a_file_and_no_other_is_known(keys: list[str], data: st.DataObject) -> None:
    lines = [f"sha256:{hashlib.sha256(k.encode()).hexdigest()}" if data.draw(st.booleans()) else k for k in keys]
    callers = parse("\n".join(lines))
    assert set(callers) == {digest(key) for key in keys}
    assert len({principal.tenant for principal in callers.values()}) == len(keys), "each key without a tenant is one"


def test_keys_change_without_a_restart_and_a_broken_file_keeps_the_old_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{CANARY} tenant=acme\n")
    keys = ApiKeys(path, classes={"default"})
    found = keys.find(CANARY)
    assert found is not None
    assert found.tenant == "acme"
    caplog.set_level(logging.INFO)
    for broken in (f"{CANARY} class=gone\n", "# none\n", "\udcff"):
        path.write_text(broken, errors="surrogateescape")
        assert keys.reload()
        assert keys.find(CANARY) == found
    path.write_text("new-key\n")
    assert keys.reload()
    assert keys.find(CANARY) is None, "a key that was taken out is refused"
    path.unlink()
    assert keys.reload()
    assert keys.find("new-key") is not None
    events = [record.message for record in caplog.records]
    assert events == [
        "api_keys_refused", "api_keys_refused", "api_keys_unreadable", "api_keys_read", "api_keys_unreadable",
    ]  # fmt: skip
    assert CANARY not in repr([record.__dict__ for record in caplog.records])


def test_a_secret_that_was_swapped_within_one_tick_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("key-a\n")
    keys = ApiKeys(path)
    stat = path.stat()
    (tmp_path / "next").write_text("key-b\n")
    os.utime(tmp_path / "next", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (tmp_path / "next").rename(path)  # as the kubelet swaps a mounted Secret: same size, and here the same time
    keys.reload()
    assert keys.find("key-b") is not None


@pytest.mark.parametrize("content", ["", "# only a comment\n", f"{CANARY} class=gold\n"])
def test_a_process_does_not_start_with_keys_it_cannot_read(tmp_path: Path, content: str) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(ConfigError, match="WEFT_API_KEYS_FILE") as caught:
        ApiKeys(path, classes={"default"})
    assert CANARY not in str(caught.value)


def test_who_is_not_known_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one-key tenant=acme\n")
    authenticator = Authenticator(ApiKeys(path))
    assert authenticator.principal("Bearer one-key", 0.0).tenant == "acme"
    assert authenticator.principal("bearer   one-key ", 0.0).tenant == "acme"
    for header in (None, "", "one-key", "Basic one-key", "Bearer", "Bearer  ", "Bearer two-key", "Bearer a.b.c"):
        with pytest.raises(UnauthorizedError) as caught:
            authenticator.principal(header, 0.0)
        assert "two-key" not in caught.value.message
    assert Authenticator(None).principal(None, 0.0) is ANYONE


def test_whom_a_key_was_noted_for_is_known_until_other_keys_are_read(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one-key tenant=acme\n")
    keys, credential_cache, other = ApiKeys(path), CredentialCache(), CredentialCache()
    authenticator = Authenticator(keys)
    for _ in range(2):
        assert authenticator.principal("Bearer one-key", 0.0, credential_cache).tenant == "acme"
        with pytest.raises(UnauthorizedError):
            authenticator.principal("Bearer two-key", 0.0, other)
    keys.reload()
    assert authenticator.principal("Bearer one-key", 0.0, credential_cache).tenant == "acme"
    path.write_text("one-key tenant=another\n")
    keys.reload()
    assert authenticator.principal("Bearer one-key", 0.0, credential_cache).tenant == "another"
    path.write_text("two-key tenant=acme\n")
    keys.reload()
    with pytest.raises(UnauthorizedError):
        authenticator.principal("Bearer one-key", 0.0, credential_cache)
    assert authenticator.principal("Bearer two-key", 0.0, other).tenant == "acme"
