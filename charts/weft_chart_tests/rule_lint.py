"""Check alert rules and dashboard queries with promtool: ``python -m weft_chart_tests.rule_lint PROMTOOL``.

promtool parses the rules and every query of the dashboard, and plays the series of ``alerts/*.yaml`` to the rules.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "charts/weft/files/monitoring"
RULES = MONITORING / "router-alerts.yaml"
TESTS = sorted(Path(__file__).with_name("alerts").glob("*.yaml"))
PROMTOOL_SECONDS = 60


def queries() -> list[str]:
    """Return the dashboard's queries, with values for what Grafana fills in."""
    panels = json.loads((MONITORING / "router-dashboard.json").read_text())["panels"]
    found = [target["expr"] for panel in panels if panel["type"] != "row" for target in panel["targets"]]
    return [query.replace("$__rate_interval", "5m") for query in found]


def recorded(expressions: list[str]) -> str:
    """Return expressions as the rules that promtool checks."""
    rules = [{"record": f"dashboard:query_{number}", "expr": expr} for number, expr in enumerate(expressions)]
    return yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]})


def run(promtool: str, *words: str) -> bool:
    """Run promtool and tell whether it was content; show what it said where it was not."""
    done = subprocess.run([promtool, *words], capture_output=True, text=True, timeout=PROMTOOL_SECONDS, check=False)
    if done.returncode != 0:
        sys.stderr.write(f"promtool {' '.join(words)}:\n{done.stdout}{done.stderr}\n")
    return done.returncode == 0


def main() -> int:
    """Check all; return 1 where something is wrong."""
    promtool, checked = sys.argv[1], queries()
    with tempfile.TemporaryDirectory() as folder:
        dashboard = Path(folder, "dashboard.yaml")
        dashboard.write_text(recorded(checked))
        verdicts = [
            run(promtool, "check", "rules", "--lint-fatal", str(RULES)),
            run(promtool, "check", "rules", "--lint-fatal", str(dashboard)),
            run(promtool, "test", "rules", *map(str, TESTS)),
        ]
    if not all(verdicts):
        return 1
    sys.stdout.write(f"promtool: rules and {len(checked)} queries of the dashboard parse, {len(TESTS)} tests pass\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
