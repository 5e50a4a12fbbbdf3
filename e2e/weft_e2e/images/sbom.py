"""What is inside an image, as its own Python says, written as a CycloneDX bill of materials and held to what is pinned.

An image holds an interpreter, installed distributions and the shared libraries that they load; nothing else is left of
the packages that these came from.
"""

import json
import re
import subprocess
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from weft_e2e.images import buildah
from weft_e2e.images.catalogue import Image, repository_root
from weft_e2e.images.errors import CannotBuildError

NAMESPACE = uuid.UUID("5b2b4c0e-5f0e-4f0a-9a39-0c1f6a5d7e11")
"""Of serial numbers: the same image has the same bill."""
LISTING_SECONDS = 120
INTERPRETER = "python"
OURS = "weft"

LISTING = """
import hashlib, importlib.metadata, json, os, platform, sys
libraries = {}
for top in ("/lib", "/lib64", "/usr/lib"):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if ".so" in name and os.path.isfile(path) and not os.path.islink(path) and "/python3" not in path:
                libraries[name] = hashlib.sha256(open(path, "rb").read()).hexdigest()
found = {
    "python": platform.python_version(),
    "machine": platform.machine(),
    "distributions": {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()},
    "libraries": libraries,
}
json.dump(found, sys.stdout)
"""

_PIN = re.compile(r"^([A-Za-z0-9][^\s;\\]*==[^\s;\\]+(?:\s*;[^\\]+)?)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Contents:
    """What an image holds: the interpreter's version, distributions by name, and libraries' SHA-256 by file name."""

    python: str
    machine: str
    distributions: Mapping[str, str]
    libraries: Mapping[str, str]

    @property
    def environment(self) -> dict[str, str]:
        """Return what markers of requirements ask about."""
        return {
            "python_version": ".".join(self.python.split(".")[:2]),
            "python_full_version": self.python,
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "implementation_name": "cpython",
            "sys_platform": "linux",
            "platform_system": "Linux",
            "os_name": "posix",
        }


def contents_of(ref: str) -> Contents:
    """Ask an image's own Python what it holds.

    Raises:
        CannotBuildError: the image is not there, or its Python does not answer.
    """
    container = _said("from", ref).strip()
    try:
        text = _said("run", "--isolation", "chroot", container, "--", "python", "-c", LISTING)
    finally:
        _said("rm", container)
    return read_contents(text)


def read_contents(text: str) -> Contents:
    """Read what ``LISTING`` printed."""
    body = json.loads(text)
    named: dict[str, str] = {canonicalize_name(name): version for name, version in body["distributions"].items()}
    return Contents(body["python"], body["machine"], named, body["libraries"])


def bill_of(name: str, ref: str, contents: Contents) -> dict[str, object]:
    """Return the bill of materials of an image; the same image gives the same bytes."""
    distributions = [
        {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}
        for name, version in sorted(contents.distributions.items())
    ]
    interpreter = {
        "type": "platform",
        "name": INTERPRETER,
        "version": contents.python,
        "purl": f"pkg:generic/{INTERPRETER}@{contents.python}",
    }
    libraries = [
        {"type": "file", "name": name, "hashes": [{"alg": "SHA-256", "content": digest}]}
        for name, digest in sorted(contents.libraries.items())
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, ref)}",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "version": ref.rpartition(":")[2]}},
        "components": [interpreter, *distributions, *libraries],
    }


def pinned(texts: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the versions that requirements files pin in an environment, by name."""
    found: dict[str, str] = {}
    for line in (line for text in texts for line in _PIN.findall(text)):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(dict(environment)):
            found[canonicalize_name(requirement.name)] = str(requirement.specifier).removeprefix("==")
    return found


def differences(contents: Contents, pins: Mapping[str, str]) -> list[str]:
    """Return what an image holds otherwise than pinned, empty when it is what the requirements say and Weft itself."""
    held = {name: version for name, version in contents.distributions.items() if name != OURS}
    wrong = [
        f"{name}: the image has {held.get(name, 'none')}, pinned is {pins.get(name, 'none')}"
        for name in sorted({*held, *pins})
        if held.get(name) != pins.get(name)
    ]
    return wrong if OURS in contents.distributions else [*wrong, f"{OURS}: the image has none"]


def requirements_of(image: Image) -> list[Path]:
    """Return the requirements files from which an image's own environment is installed, without build arguments."""
    root = repository_root()
    dockerfile = (root / image.dockerfile).read_text()
    installed = re.findall(r"--python /opt/weft/bin/python install [^\n]*?((?: -r requirements/\S+)+)", dockerfile)
    names = {name for words in installed for name in re.findall(r"requirements/(\S+)", words)} - {
        "compile.txt",
        "operator-silicon.txt",
    }
    return [root / "requirements" / name for name in sorted(names)]


def _said(*words: str) -> str:
    done = subprocess.run(buildah.command(*words), capture_output=True, text=True, timeout=LISTING_SECONDS, check=False)
    if done.returncode != 0:
        raise CannotBuildError(f"buildah {words[0]}: {done.stderr.strip()[-500:]}")
    return done.stdout
