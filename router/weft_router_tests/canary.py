"""Words that a test plants where secrets and prompts are, and the proof that nothing the router tells holds them.

Plant `PROMPT` in messages, `KEY` as API key, `TOKEN` as internal token or JWT, `USERINFO` in URLs, `ANSWER` in what
engines say; then hand logs, metrics pages, debug pages, traces and errors to `assert_no_secrets`. A client's own answer
holds `ANSWER`, of course.
"""

import base64
from collections.abc import Iterable

PROMPT = 'canary-prompt-Zq7fK2wX9 ünïcode "quoted"'
KEY = "sk-canary-key-Hd83jTmQ0aLx"
TOKEN = "canary-token-Vb51nRtY7cEe"
USERINFO = "canary-user:canary-password-Pw29"
ANSWER = "canary-answer-Mn64gSuB3"
CANARIES = {"prompt": PROMPT, "key": KEY, "token": TOKEN, "userinfo": USERINFO, "answer": ANSWER}

_MARKS = ("Zq7fK2wX9", "Hd83jTmQ0aLx", "Vb51nRtY7cEe", "canary-password-Pw29", "Mn64gSuB3")
"""The part of each that survives whatever quoting."""


def assert_no_secrets(text: str | bytes, *, allow: Iterable[str] = ()) -> None:
    """Fail when a canary is in a text: in whatever case or quotes, backwards, percent-encoded, in hex or in base64."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    folded = text.casefold()
    for name, mark in zip(CANARIES, _MARKS, strict=True):
        if name in allow:
            continue
        for form in _forms(mark):
            assert form.casefold() not in folded, f"the {name} leaks: …{_around(folded, form.casefold())}…"


def _forms(mark: str) -> list[str]:
    """Return what a mark may look like; base64 in its three alignments, without the letters its neighbours change."""
    raw = mark.encode()
    aligned = [base64.b64encode(b"\0" * pad + raw).decode()[(4, 4, 4)[pad] if pad else 0 :] for pad in range(3)]
    return [mark, mark[::-1], raw.hex(), *(part.rstrip("=")[:-2] for part in aligned)]


def _around(text: str, found: str) -> str:
    at = text.index(found)
    return text[max(0, at - 40) : at + len(found)]
