"""Debian's docker-registry (CNCF Distribution) on loopback: it validates what is pushed as a public registry does."""

import contextlib
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from weft_e2e.local.ports import free_ports
from weft_e2e.waiting import until


@contextlib.contextmanager
def serve_registry(folder: Path) -> Iterator[str]:
    """Run a registry that keeps its content in ``folder``; give its address, host and port."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    config = folder / "registry.yml"
    content = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": address},
    }
    config.write_text(yaml.safe_dump(content))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", str(config)], stdout=log, stderr=subprocess.STDOUT)
        try:
            until(lambda: _answers(address), what="an answer of the registry", timeout_s=60, every_s=0.1)
            yield address
        finally:
            process.terminate()
            process.wait(timeout=30)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/v2/", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    with serve_registry(tmp_path) as address:
        yield address
