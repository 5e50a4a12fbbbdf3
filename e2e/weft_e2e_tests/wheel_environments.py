"""An environment as ``pip install 'weft[EXTRA]'`` makes it from a built wheel, without asking any package index."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with the wheel and what its extra requires, and a working directory elsewhere."""

    folder: Path

    @property
    def site(self) -> Path:
        """Return where packages lie."""
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.folder), "platbase": str(self.folder)}))

    @property
    def home(self) -> Path:
        """Return the user's home and working directory."""
        return self.folder / "home"

    def run(self, *argv: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment."""
        env = {
            "PATH": f"{self.folder / 'bin'}:{os.defpath}",
            "HOME": str(self.home),
            "WEFT_CACHE": str(self.home / "cache"),
            "TMPDIR": str(self.home),
            "LANG": "C.UTF-8",
        }
        program = str(self.folder / "bin" / argv[0])
        return subprocess.run(
            [program, *argv[1:]], cwd=self.home, env=env, capture_output=True, text=True, timeout=timeout_s
        )


def build_wheel(into: Path) -> Path:
    """Build the wheel of this checkout."""
    argv = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(into)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = into.glob("weft-*.whl")
    return wheel


def install(wheel: Path, folder: Path, *, extras: Sequence[str]) -> Environment:
    """Make an empty environment, install the wheel, and put beside it exactly what the extras require."""
    made = Environment(folder)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    python = str(folder / "bin/python")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, timeout=120)
    weft = PathDistribution(next(made.site.glob("weft-*.dist-info")))
    for needed in required(weft, extras):
        _link(needed, made.site)
    made.home.mkdir()
    return made


def required(weft: Distribution, extras: Sequence[str]) -> list[Distribution]:
    """Return the distributions of this environment that weft's extras lead to, each once."""
    found: dict[str, Distribution] = {}
    done: set[tuple[str, str]] = set()
    todo = [("weft", extra) for extra in ("", *extras)]
    while todo:
        name, extra = pair = todo.pop()
        if pair in done:
            continue
        done.add(pair)
        if name != "weft":
            found[name] = distribution(name)
        todo += _asked(weft if name == "weft" else found[name], extra)
    return list(found.values())


def _asked(owner: Distribution, extra: str) -> Iterator[tuple[str, str]]:
    for requirement in map(Requirement, owner.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield from ((canonicalize_name(requirement.name), more) for more in ("", *requirement.extras))


def _link(needed: Distribution, site: Path) -> None:
    tops = {file.parts[0] for file in needed.files or ()} - {"..", "__pycache__"}
    for top in tops:
        (site / top).symlink_to(str(needed.locate_file(top)))
