"""Check the rendered chart and services with checkov: ``python -m weft_chart_tests.manifest_lint <checkov>``.

What is checked are the golden files, which tests keep equal to what is rendered. A finding that
``charts/manifest_findings.yaml`` does not explain is an error, and so is an explanation without a finding.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FINDINGS = ROOT / "charts/manifest_findings.yaml"
RENDERED = ("charts/weft_chart_tests/golden", "operator/weft_operator_tests/golden")
LEAST_RESOURCES = 300
"""The golden files hold more; fewer would mean that checkov did not read them."""
LONGEST_S = 300


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A check that an object of a file fails; ``name`` is kind/name."""

    check: str
    name: str
    file: str
    words: str

    def __str__(self) -> str:
        return f"{self.file}: {self.name}: {self.check} {self.words}"


@dataclass(frozen=True, slots=True)
class Explained:
    """Findings that are right as they are, and why."""

    check: str
    of: tuple[str, ...]
    reason: str

    def covers(self, finding: Finding) -> bool:
        """Tell whether this is about a finding."""
        return finding.check == self.check and any(fnmatchcase(finding.name, pattern) for pattern in self.of)


def explained(path: Path = FINDINGS) -> list[Explained]:
    """Read the explanations.

    Raises:
        ValueError: an entry lacks a check, objects or a reason.
    """
    found = []
    for row in yaml.safe_load(path.read_text()):
        if set(row) != {"check", "of", "reason"} or not all(row.values()):
            raise ValueError(f"{path.name}: every entry has check, of and reason, not {row}")
        found.append(Explained(row["check"], tuple(row["of"]), row["reason"]))
    return found


def faults(findings: Iterable[Finding], reasons: Sequence[Explained]) -> list[str]:
    """Return what to mend: findings that nothing explains, and patterns that explain nothing."""
    listed = list(findings)
    new = sorted(finding for finding in listed if not any(one.covers(finding) for one in reasons))
    stale = [
        f"{FINDINGS.name}: {one.check} of {pattern}: no such finding any more, remove it"
        for one in reasons
        for pattern in one.of
        if not any(Explained(one.check, (pattern,), one.reason).covers(finding) for finding in listed)
    ]
    return [*map(str, new), *stale]


def findings_of(reports: Iterable[dict[str, Any]]) -> list[Finding]:
    """Read checkov's reports."""
    found = []
    for report in reports:
        for failed in report.get("results", {}).get("failed_checks", []):
            kind, _, rest = failed["resource"].partition(".")
            name = rest.split(".")[1] if "." in rest else rest
            found.append(Finding(failed["check_id"], f"{kind}/{name}", failed["file_path"], failed["check_name"]))
    return found


def checked(program: str, folder: str) -> tuple[list[Finding], int]:
    """Run checkov over a folder; return what it found, and how many objects it read."""
    words = [program, "--skip-download", "--directory", folder, "--framework", "kubernetes"]
    done = subprocess.run(
        [*words, "--compact", "--quiet", "--output", "json", "--soft-fail"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"checkov failed: {done.stderr[-2000:]}")
    body = json.loads(done.stdout)
    reports = body if isinstance(body, list) else [body]
    errors = [report["summary"]["parsing_errors"] for report in reports]
    if any(errors):
        raise RuntimeError(f"checkov could not read {sum(errors)} files of {folder}")
    return findings_of(reports), sum(report["summary"]["resource_count"] for report in reports)


def main() -> int:
    """Print what to mend; return 1 when there is something."""
    listed: list[Finding] = []
    resources = 0
    for folder in RENDERED:
        found, count = checked(sys.argv[1], folder)
        listed += found
        resources += count
    wrong = faults(listed, explained())
    if resources < LEAST_RESOURCES:
        wrong.append(f"checkov read only {resources} objects of the golden files")
    for line in wrong:
        sys.stderr.write(f"{line}\n")
    if wrong:
        sys.stderr.write(f"mend them, or say in {FINDINGS.relative_to(ROOT)} why they are right\n")
        return 1
    sys.stdout.write(f"checkov: {resources} objects, {len(listed)} findings, all explained\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
