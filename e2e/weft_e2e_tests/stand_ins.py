"""Programs on PATH that stand in for real ones: each checks its words strictly, notes them, and has a fixed answer."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

Verb = Mapping[str, object]

PROGRAM = """#!{python} -IS
import json, pathlib, sys
folder = pathlib.Path({folder!r})
name, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
stdin = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
with (folder / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps([name, *words]) + "\\n")
for verb in json.loads((folder / (name + ".json")).read_text()):
    asked = verb["verb"].split()
    if words[: len(asked)] != asked:
        continue
    rest, given, plain = words[len(asked) :], [], []
    while rest:
        word = rest.pop(0)
        flag, equals, _ = word.partition("=")
        if not word.startswith("-") or word == "-":
            plain.append(word)
        elif flag in verb["valued"]:
            given.append(flag)
            if not equals:
                rest.pop(0)
        elif word in verb["flags"]:
            given.append(word)
        else:
            sys.exit(f"{{name}}: unknown flag: {{word}}")
    if not verb["least"] <= len(plain) <= verb["most"]:
        sys.exit(f"{{name}} {{verb['verb']}}: {{len(plain)}} arguments: {{plain}}")
    if absent := set(verb["required"]) - set(given):
        sys.exit(f"{{name}} {{verb['verb']}}: without {{sorted(absent)}}")
    if "output" in verb:
        sys.stdout.write(verb["output"])
    sys.exit(verb["status"])
sys.exit(f"{{name}}: unknown command {{words}}")
"""


def verb(
    words: str,
    *,
    valued: Sequence[str] = (),
    flags: Sequence[str] = (),
    required: Sequence[str] = (),
    arguments: tuple[int, int] = (0, 0),
    status: int = 0,
    output: str = "",
) -> Verb:
    """Describe a verb: the flags it knows, those it needs, how many arguments it takes, and what it answers."""
    least, most = arguments
    known = {"verb": words, "valued": list(valued), "flags": list(flags), "required": list(required)}
    return {**known, "least": least, "most": most, "status": status, "output": output}


class StandIns:
    """A folder for PATH with the programs that were put there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, name: str, *verbs: Verb) -> None:
        """Put a program there; the first verb that fits answers."""
        (self.folder / f"{name}.json").write_text(json.dumps(verbs))
        program = self.folder / name
        program.write_text(PROGRAM.format(python=sys.executable, folder=str(self.folder)))
        program.chmod(0o755)

    @property
    def calls(self) -> list[list[str]]:
        """Return every command line, in order."""
        noted = self.folder / "calls.jsonl"
        return [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []

    def lines(self, *names: str) -> list[str]:
        """Return the command lines of some programs as a shell would show them."""
        return [shlex.join(call) for call in self.calls if call[0] in names]
