"""How findings of checkov are read, and what is done about those that nothing explains."""

from pathlib import Path

import pytest

from weft_chart_tests.manifest_lint import Explained, Finding, explained, faults, findings_of

ROOT_USER = Finding("CKV_K8S_23", "Deployment/weft-redis", "/default.yaml", "root containers")
REASON = Explained("CKV_K8S_23", ("Deployment/weft-*",), "a test")


def test_findings_are_named_by_kind_and_name() -> None:
    failed = {
        "check_id": "CKV_K8S_23",
        "check_name": "root containers",
        "file_path": "/default.yaml",
        "resource": "Deployment.weft-system.weft-redis",
    }
    assert findings_of([{"results": {"failed_checks": [failed]}}, {}]) == [ROOT_USER]


def test_what_nothing_explains_and_what_explains_nothing_is_told() -> None:
    assert faults([ROOT_USER], [REASON]) == []
    assert faults([ROOT_USER], []) == ["/default.yaml: Deployment/weft-redis: CKV_K8S_23 root containers"]
    (stale,) = faults([ROOT_USER], [Explained("CKV_K8S_23", ("Deployment/weft-*", "Pod/*"), "a test")])
    assert "CKV_K8S_23 of Pod/*: no such finding any more" in stale


def test_every_explanation_has_a_reason(tmp_path: Path) -> None:
    assert len(explained()) >= 10
    path = tmp_path / "findings.yaml"
    path.write_text("- {check: CKV_K8S_8, of: [Pod/x], reason: ''}\n")
    with pytest.raises(ValueError, match="every entry has check, of and reason"):
        explained(path)
