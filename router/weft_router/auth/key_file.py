"""Read a file of API keys: one a line, as it is or as its SHA-256, followed by what its holder may do.

    # comments and empty lines are skipped
    sk-0123456789abcdef
    sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae tenant=acme weight=2 class=interactive
    sk-fedcba9876543210 tenant=acme rps=5 tpm=60000 concurrent=8

A file with a line that cannot be read is refused as a whole: half of the keys would be worse than those of before.
Messages name the line by its number and never repeat it.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from weft_router.auth.principal import NO_KEYS_TENANT, Principal, RateLimits, tenant_fits

_HASHED = "sha256:"
_OPTIONS = ("tenant", "weight", "class", "rps", "tpm", "concurrent")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_PLAIN = re.compile(r"[!-~]+")
MAX_KEY = 512
_sha256: Final = sha256


class KeyFileError(ValueError):
    """Report a file of API keys that cannot be used; the message names line and fix, never a key."""


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    digest: bytes
    options: Mapping[str, str]


def digest(key: str) -> bytes:
    """Return what is kept of a key."""
    return _sha256(key.encode("utf-8", "surrogatepass")).digest()


def parse(text: str, *, classes: Collection[str] | None = None) -> dict[bytes, Principal]:
    """Return the caller of every key by the key's digest; ``classes`` are the names that ``class=`` may hold.

    Raises:
        KeyFileError: a line is not understood, a key comes twice, or the keys of a tenant disagree about its weight.
    """
    found: dict[bytes, Principal] = {}
    weights: dict[str, float] = {}
    for number, text_line in enumerate(text.splitlines(), 1):
        words = text_line.split()
        if not words or words[0].startswith("#"):
            continue
        line = _Line(number, _digest_of(words[0], number), _options(words[1:], number))
        principal = _caller(line, classes)
        if line.digest in found:
            raise KeyFileError(f"line {number}: this key is on an earlier line too; remove one")
        if principal.weight is not None and weights.setdefault(principal.tenant, principal.weight) != principal.weight:
            raise KeyFileError(f"line {number}: weight: another key of this tenant has another weight; make them equal")
        found[line.digest] = principal
    return found


def _digest_of(word: str, number: int) -> bytes:
    if not word.startswith(_HASHED):
        if len(word) > MAX_KEY:
            raise KeyFileError(f"line {number}: a key has at most {MAX_KEY} characters; shorten it")
        if _PLAIN.fullmatch(word) is None:
            raise KeyFileError(
                f"line {number}: a key has visible ASCII characters only, for no client can send others in a header; "
                "make a new one"
            )
        return digest(word)
    written = word.removeprefix(_HASHED)
    if _DIGEST.fullmatch(written) is None:
        raise KeyFileError(f"line {number}: sha256: needs 64 hexadecimal digits, as sha256sum prints them")
    return bytes.fromhex(written)


def _options(words: list[str], number: int) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or name not in _OPTIONS or not value:
            raise KeyFileError(f"line {number}: after the key only {', '.join(f'{o}=…' for o in _OPTIONS)} may stand")
        if name in options:
            raise KeyFileError(f"line {number}: {name}: is given twice; remove one")
        options[name] = value
    return options


def _caller(line: _Line, classes: Collection[str] | None) -> Principal:
    options, known = line.options, line.digest.hex()[:16]
    tenant = options.get("tenant", known)
    if not tenant_fits(tenant):
        raise KeyFileError(
            f"line {line.number}: tenant: needs 1 to 128 visible ASCII characters, and {NO_KEYS_TENANT!r} is taken"
        )
    name = options.get("class", "")
    if name and classes is not None and name not in classes:
        raise KeyFileError(f"line {line.number}: class: is not one of {', '.join(sorted(classes))}")
    concurrent = _number(line, "concurrent")
    if concurrent is not None and (concurrent < 1 or concurrent != int(concurrent)):
        raise KeyFileError(f"line {line.number}: concurrent: needs a whole number of 1 or more")
    bounds = RateLimits(
        rps=_number(line, "rps"), tpm=_number(line, "tpm"), concurrent=None if concurrent is None else int(concurrent)
    )
    return Principal(
        tenant=tenant,
        id=known,
        class_name=name,
        bounds=bounds if options.keys() & {"rps", "tpm", "concurrent"} else None,
        weight=_number(line, "weight"),
    )


def _number(line: _Line, name: str) -> float | None:
    text = line.options.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e12:
        raise KeyFileError(f"line {line.number}: {name}: needs a number above 0")
    return value
