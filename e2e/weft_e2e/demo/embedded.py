"""The demo without a cluster: the same service, sessions and report, run as processes of this machine."""

from pathlib import Path

import yaml

from weft_e2e.demo.run import choose, manifest_for
from weft_e2e.demo.settings import Settings
from weft_e2e.demo.steps import Say
from weft_e2e.example_files import example_file
from weft_e2e.local.run import Options, run


def run_embedded(settings: Settings, say: Say) -> int:
    """Plan the demo's service, serve and replay its sessions with ``weft local``, report; return the exit status.

    Raises:
        Fell, NoPlan, OSError: as ``weft_e2e.local.run.run``.
    """
    settings.out.mkdir(parents=True, exist_ok=True)
    options = Options(
        file=str(_service_file(settings)),
        replay=settings.trace,
        limits=settings.limits,
        report=settings.out / "report.html",
    )
    return run(options, say)


def _service_file(settings: Settings) -> Path:
    """Return the example's file; where its workload is not that of the replayed sessions, one that has theirs."""
    example = example_file()
    manifest, _ = manifest_for(settings, choose(settings))
    if manifest == yaml.safe_load(example.read_text()):
        return example
    fitted = settings.out / "service.yaml"
    fitted.write_text(yaml.safe_dump(manifest, sort_keys=False))
    return fitted
