"""``weft plan --rate-match``: the ratio of context to generation servers, from a cost profile or from live curves."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from weft_cli.errors import BadInputError, lines_of
from weft_cli.output import emit
from weft_core.layouts import Role
from weft_core.parallelism import Degree
from weft_planner.cli.service import Service

if TYPE_CHECKING:
    from weft_planner.profiling.sweep_file import Sweep
    from weft_planner.rate_match import CurveSource, RoundShape, Servers
    from weft_planner.request.reading import Request


def show_rate_match(service: Service, *, curves: Sequence[str] = (), output: str, report: str | None = None) -> int:
    """Print the matched rates, and write their page to ``report``; 0, or 1 when no server holds the SLO.

    ``curves`` are files of sweeps, which take the place of the cost profile's curves.
    """
    from weft_planner.rate_match import NoMatch, best_whole_workers, drawn_rounds, match_rates
    from weft_planner.rate_match.json_form import body_of
    from weft_planner.request.infeasible import Infeasible
    from weft_planner.tables import refusal_parts, text_of
    from weft_planner.tables.rate_match import rate_match_parts

    request = service.request
    slo = request.slo
    sweeps = _read(curves)
    try:
        rounds = drawn_rounds(request)
        servers, source = _measured(sweeps, request, rounds) if sweeps else _profiled(request)
        found = match_rates(
            servers,
            rounds,
            ttft_s=slo.ttft,
            itl_s=slo.itl,
            percentile=slo.percentile,
            bidirectional=request.engine.bidirectional,
        )
        best = best_whole_workers(servers, rounds, request)
    except (Infeasible, NoMatch) as error:
        reason = error.reason if isinstance(error, Infeasible) else "SLOInfeasible"
        message = str(error)
        name = service.name or request.model.name
        body = {"status": "infeasible", "reason": reason, "message": message}
        emit(output, body, lambda: text_of(refusal_parts(name, reason, message, None)))
        return 1
    rate = request.workload.arrival_rate * request.workload.mean_rounds
    emit(
        output,
        {"status": "ok", "rateMatching": body_of(found, best, source=source, rounds_per_s=rate)},
        lambda: text_of(
            rate_match_parts(found, best, source=source, request=request, name=service.name, rounds_per_s=rate)
        ),
    )
    if report is not None:
        from weft_planner.cli.report import write_page
        from weft_planner.report.rate_match import rate_match_page

        name = service.name or request.model.name
        page = rate_match_page(found, best, source=source, request=request, name=name, version=version("weft"))
        write_page(report, page)
        click.echo(f"weft plan: report written: {report}", err=True)
    return 0


def _profiled(request: "Request") -> "tuple[Servers, CurveSource]":
    """Return the servers of the cost profile, at every degree that the pools allow."""
    from weft_planner.rate_match import CurveSource, profiled_servers
    from weft_planner.request.costs import profile_of, source_notes, speculation_notes

    profile = profile_of(request)
    profiles = {pool.name: profile for pool in request.capacity.pools}
    servers = profiled_servers(request, profile)
    for role, side in (("prefill", servers.context), ("decode", servers.generation)):
        if not side:
            raise click.ClickException(f"capacity.pools: no degree for role {role} in the cost profile; add one")
    remarks = [*source_notes(request, profiles), *speculation_notes(request, profiles), *_remarks(request)]
    return servers, CurveSource("the cost profile", False, remarks)


def _measured(
    sweeps: "Sequence[tuple[str, Sweep]]", request: "Request", rounds: "RoundShape"
) -> "tuple[Servers, CurveSource]":
    """Return the servers of sweeps, each on the sides that it has curves of and that the pools allow its degree.

    Raises:
        BadInputError: two files have the same curve of a degree, or no file has one of a side.
    """
    from weft_planner.rate_match import CurveSource, MeasuredServer, Servers, allowed_degrees
    from weft_planner.request.costs import profile_of
    from weft_planner.request.engines import step_limits
    from weft_planner.request.infeasible import Infeasible

    try:
        profile = profile_of(request)
    except Infeasible:
        profile = None  # it is asked for KV transfers and capacity only
    decode = step_limits(request.engine.decode)
    sides: dict[str, dict[Degree, tuple[str, MeasuredServer]]] = {"context": {}, "generation": {}, "aggregated": {}}
    remarks = dict.fromkeys(_remarks(request))
    of_degrees: dict[str, list[str]] = {}
    for path, sweep in sweeps:
        server = MeasuredServer(sweep, profile=profile, decode=decode)
        roles: dict[str, Role | Literal[False]] = {
            "context": bool(sweep.context) and "prefill",
            "generation": bool(sweep.generation) and "decode",
            "aggregated": bool(server.serving_concurrencies) and "decode",
        }
        for side, role in roles.items():
            if not role or not allowed_degrees(request, role, [sweep.degree]):
                continue
            if sweep.degree in sides[side]:
                other = sides[side][sweep.degree][0]
                raise BadInputError(path, f"{side}: {other} has curves of degree {sweep.degree}, too; give one of them")
            sides[side][sweep.degree] = path, server
        remarks |= dict.fromkeys(_mismatches(path, sweep, request))
        for remark in server.remarks(rounds):
            of_degrees.setdefault(remark, []).append(str(sweep.degree))
    for side, role in (("context", "prefill"), ("generation", "decode")):
        if not sides[side]:
            swept = ", ".join(str(sweep.degree) for _, sweep in sweeps)
            raise BadInputError(
                sweeps[0][0],
                f"{side}: no file has a curve of a degree that capacity.pools allows for role {role} (degrees swept: "
                f"{swept}); sweep such an engine, or add its degree to a pool",
            )
    for remark, degrees in of_degrees.items():
        remarks[f"degree {', '.join(dict.fromkeys(degrees))}: {remark}"] = None
    of_side = {side: [found[n][1] for n in sorted(found)] for side, found in sides.items()}
    words = ", ".join(f"{sweep.engine} of degree {sweep.degree} on {sweep.measured_at[:10]}" for _, sweep in sweeps)
    source = CurveSource(f"sweeps of live engines ({words})", True, [*remarks])
    return Servers(of_side["context"], of_side["generation"], of_side["aggregated"]), source


def _mismatches(path: str, sweep: "Sweep", request: "Request") -> list[str]:
    found = []
    if sweep.model != request.model.name:
        found.append(f"the sweep {path} is of model {sweep.model}, the service's is {request.model.name}")
    types = sorted({pool.gpu_type for pool in request.capacity.pools})
    if sweep.gpu and sweep.gpu not in types:
        found.append(f"the sweep {path} is of GPU {sweep.gpu}, the service's pools have {', '.join(types)}")
    return found


def _remarks(request: "Request") -> list[str]:
    """Return the limits of the engines, and what the workload assumes."""
    prefill, decode = request.engine.prefill, request.engine.decode
    found = []
    if decode.max_num_seqs is not None:
        found.append(f"a batch has at most {decode.max_num_seqs} sequences (engine.decode.maxNumSeqs)")
    if decode.max_num_batched_tokens is not None:
        found.append(
            f"a step of decoding has at most {decode.max_num_batched_tokens} tokens (engine.decode.maxNumBatchedTokens)"
        )
    if prefill.max_num_batched_tokens is not None:
        found.append(
            f"a prompt is computed in steps of at most {prefill.max_num_batched_tokens} tokens "
            "(engine.prefill.maxNumBatchedTokens)"
        )
    return [*found, *request.workload.assumptions]


def _read(paths: Sequence[str]) -> "list[tuple[str, Sweep]]":
    """Read sweeps.

    Raises:
        BadInputError: a file is none; the field is named.
    """
    from weft_planner.profiling.sweep_file import SweepFileError, read_sweep

    found = []
    for path in paths:
        try:
            found.append((path, read_sweep(Path(path))))
        except (SweepFileError, OSError) as error:
            raise BadInputError(path, *lines_of(error, path)) from error
    return found
