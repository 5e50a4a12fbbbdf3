"""kubeconfig files, and kubectl and helm run with one of them."""

import base64
import json
import os
import subprocess
from pathlib import Path

import yaml

from weft_e2e.cluster.deadlines import scaled
from weft_e2e.cluster.errors import CommandError
from weft_e2e.cluster.toolchain import tool_path


def kubeconfig(*, server: str, pki: Path, user: str, context: str) -> str:
    """Return a kubeconfig with everything inside: it stays valid wherever it is copied to."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": context, "cluster": {"server": server, "certificate-authority-data": _inline(pki / "ca.crt")}}
        ],
        "users": [
            {
                "name": context,
                "user": {
                    "client-certificate-data": _inline(pki / f"{user}.crt"),
                    "client-key-data": _inline(pki / f"{user}.key"),
                },
            }
        ],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "current-context": context,
    }
    return yaml.safe_dump(content, sort_keys=False)


def write_kubeconfig(file: Path, content: str) -> None:
    """Write a file that only its owner may read: it holds a private key."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(content)


def environment(config: Path) -> dict[str, str]:
    """Return the environment of a client; what it learns about the API is kept, and removed, with the cluster."""
    return os.environ | {"KUBECONFIG": str(config), "KUBECACHEDIR": str(config.parent / "client-cache")}


def kubectl_argv(*args: str) -> list[str]:
    return [str(tool_path("kubernetes")), "kubectl", *args]


def helm_argv(*args: str) -> list[str]:
    return [str(tool_path("helm")), *args]


def run(
    argv: list[str], config: Path, *, stdin: str | None = None, timeout: float = 60.0, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a client with `config`; with `check`, a failure is a CommandError that holds the client's words."""
    limit_s = scaled(timeout)
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            env=environment(config),
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        raise CommandError(f"`{_shown(argv)}` did not end within {limit_s:.0f} s") from None
    if check and done.returncode != 0:
        raise CommandError(f"`{_shown(argv)}` failed with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done


def apply(config: Path, objects: list[dict[str, object]], *, timeout: float = 60.0) -> None:
    """Apply objects by server-side apply, which refuses unknown fields without the client's own validation."""
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    options = ("--server-side", "--force-conflicts", "--validate=false", "--field-manager=weft-cluster")
    argv = kubectl_argv("apply", *options, "-f", "-")
    run(argv, config, stdin=manifest, timeout=timeout)


def _inline(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def _shown(argv: list[str]) -> str:
    words = [Path(argv[0]).name.partition("-v")[0], *argv[1:]]
    return " ".join(words[1:] if words[0] == "kubernetes" else words)[:200]
