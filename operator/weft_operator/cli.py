"""The verb ``weft operator``: run the control plane."""

import argparse
import sys


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the ``operator`` verb to the weft command line."""
    parser = subparsers.add_parser(
        "operator",
        help="run the operator: plan and deploy DisaggInferenceServices",
        description="Run the operator against the cluster of its pod, or of KUBECONFIG. Settings come from the "
        "environment: WEFT_ROUTER_IMAGE (required), WEFT_MOCK_IMAGE, WEFT_REDIS_URL, WEFT_WATCH_NAMESPACES, "
        "WEFT_PLANNER_DEADLINE_SECONDS, WEFT_RESYNC_SECONDS, WEFT_OPERATOR_PORT, WEFT_OPERATOR_INSTANCE (look after "
        "services only that carry it as label weft.dev/operator).",
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM; exit status 2 when a setting is wrong, 1 when there is no cluster."""
    import asyncio

    from weft_operator import logs, program
    from weft_operator.errors import ForbiddenError
    from weft_operator.settings import SettingsError, settings_from_env

    logs.configure(args.log_level)
    try:
        asyncio.run(program.run(settings_from_env()))
    except SettingsError as error:
        print(f"weft operator: {error}", file=sys.stderr)
        return 2
    except ForbiddenError as error:
        print(f"weft operator: {error}", file=sys.stderr)
        return 1
    return 0
