"""Generate the CRDs and the reference pages from the code: ``python -m weft_operator.commands.generate``."""

import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from weft_operator.api.crd import cost_profile_crd, service_crd, worker_group_crd
from weft_operator.api.policies import policies_page
from weft_operator.api.reference import api_page
from weft_operator.status.reasons.catalogue import status_page
from weft_operator.status.runbook import runbook_page


def generated_files() -> Iterator[tuple[str, str]]:
    """Yield (path in the repository, text) of every generated file."""
    for crd in (service_crd(), cost_profile_crd(), worker_group_crd()):
        text = yaml.safe_dump(crd, sort_keys=False, width=120, allow_unicode=True)
        name = f"weft.dev_{crd['spec']['names']['plural']}.yaml"
        yield f"crds/{name}", text
        # The chart keeps byte-for-byte copies, because Helm cannot template files outside the chart.
        yield f"charts/weft/files/crds/{name}", text
    yield "docs/reference/api.md", api_page()
    yield "docs/reference/status.md", status_page()
    yield "docs/reference/runbook.md", runbook_page()
    yield "docs/reference/policies.md", policies_page()


def main() -> int:
    """Write every generated file that differs; return 0."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "crds").is_dir():
        sys.stderr.write(f"{root} is not a checkout of the repository: crds/ is missing\n")
        return 2
    for path, text in generated_files():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
