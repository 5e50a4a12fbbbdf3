"""Check alert rules and dashboard queries with promtool: ``python -m weft_chart_tests.rule_lint PROMTOOL``.

promtool parses the rules and every query of the dashboard, plays the series of ``alerts/*.yaml`` to the rules, and
those of ``trigger_series.yaml`` to the operator's queries for ``spec.planning.triggers``.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from weft_operator.metrics.trigger_queries import TriggerWindow, figure_of, trigger_queries

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "charts/weft/files/monitoring"
RULES = MONITORING / "router-alerts.yaml"
TESTS = sorted(Path(__file__).with_name("alerts").glob("*.yaml"))
TRIGGER_SERIES = Path(__file__).with_name("trigger_series.yaml")
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


def trigger_test() -> str:
    """Return promtool's test of the triggers' queries: series, and what each figure is then."""
    given = yaml.safe_load(TRIGGER_SERIES.read_text())
    asked = trigger_queries(
        [TriggerWindow(metric, 60) for metric in given["figures"]],
        scope='namespace="llm",service="demo"',
        namespace='"llm"',
        kv_use="vllm:kv_cache_usage_perc",
    )
    values = [
        {"expr": asked[figure_of(metric)], "eval_time": "5m", "exp_samples": [{"labels": "{}", "value": value}]}
        for metric, value in given["figures"].items()
    ]
    case = {"interval": "15s", "input_series": given["input_series"], "promql_expr_test": values}
    return yaml.safe_dump({"tests": [case]})


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
        triggers = Path(folder, "triggers.yaml")
        triggers.write_text(trigger_test())
        verdicts = [
            run(promtool, "check", "rules", "--lint-fatal", str(RULES)),
            run(promtool, "check", "rules", "--lint-fatal", str(dashboard)),
            run(promtool, "test", "rules", *map(str, TESTS), str(triggers)),
        ]
    if not all(verdicts):
        return 1
    sys.stdout.write(
        f"promtool: rules and {len(checked)} queries of the dashboard parse, {len(TESTS) + 1} tests pass\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
