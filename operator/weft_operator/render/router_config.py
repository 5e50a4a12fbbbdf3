"""The routers' configuration: only what a service sets, so that upgrades restart nothing."""

from collections.abc import Mapping
from typing import Any

from weft_core.durations import parse_duration
from weft_core.plan import Plan
from weft_core.policies.registry import DEFAULT_CAP
from weft_core.policies.routing.weft import STATISTICS
from weft_operator.api.coordinator import Coordinator, Jwt, Telemetry
from weft_operator.api.engine_merge import engine_of_role
from weft_operator.api.routing import Qos, Rates, RequestClass, Routing
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.render.engines.adapter_source import adapter_places, loads_at_run_time
from weft_operator.render.inputs import Rendering

KEYS_FOLDER = "/etc/weft-api-keys"
TLS_FOLDER = "/etc/weft-tls"
JWKS_FOLDER = "/etc/weft-jwks"

_TLS_VERSIONS = {"VersionTLS12": "1.2", "VersionTLS13": "1.3"}


def router_json(rendering: Rendering) -> Mapping[str, Any]:
    """Return the static configuration of routers; a change restarts them. Times are seconds.

    Replica counts are left out, because workers register themselves, and so is all that ``live_json`` holds.
    """
    spec = rendering.spec
    transfer, routing, limits = spec.engine.kv_transfer, spec.routing, spec.coordinator.limits
    # Only where they are needed, so that the rendering of other services, and with it their pods, stays as it was.
    request_log = {"requestLog": {"to": "stdout"}} if routing.request_log == "Stdout" else {}
    profiles = {"profiles": rendering.record.profiles} if rendering.record.profiles else {}
    quarantine = {} if limits.quarantine is None else {"quarantineSeconds": parse_duration(limits.quarantine)}
    proofs = {} if transfer.proof_seconds is None else {"proofSeconds": transfer.proof_seconds}
    static = spec.model.adapters and not loads_at_run_time(spec)
    adapters = {"adapters": list(adapter_places(spec))} if static else {}
    times = {"idle": limits.idle_timeout, "total": limits.total_timeout, "silence": limits.keep_alive}
    timeouts = {name: parse_duration(value) for name, value in times.items() if value is not None}
    return {
        **request_log,
        **({"timeouts": timeouts} if timeouts else {}),
        **profiles,
        **_telemetry(spec.telemetry),
        "service": rendering.key.name,
        "namespace": rendering.key.namespace,
        "model": {"name": spec.model.served, "maxModelLen": spec.model.max_model_len, **adapters},
        "engine": {
            "type": spec.engine.type,
            "bidirectional": transfer.bidirectional,
            "leaseSeconds": transfer.lease_seconds,
            "handleTtlSeconds": transfer.handle_ttl_seconds,
            **proofs,
        },
        "routing": _fixed(spec),
        "limits": {
            "maxBodyBytes": limits.max_body_bytes,
            "maxN": limits.max_n,
            "maxOutputTokens": limits.max_output_tokens or spec.model.max_model_len,
            **_given({"maxBodyNodes": limits.max_body_nodes, "maxBytesInFlight": limits.max_bytes_in_flight}),
            **quarantine,
        },
        "profile": rendering.record.profile,
        "planRevision": rendering.revision,
    }


def _step_limits(spec: DisaggInferenceServiceSpec, plan: Plan) -> dict[str, Any]:
    """Return how many sequences a decode worker's step may have, if limited; each takes a token of the step.

    Only co-located workers need to know the tokens, too.
    """
    decode = engine_of_role(spec.engine, "decode")
    given = [limit for limit in (decode.max_num_seqs, decode.max_num_batched_tokens) if limit is not None]
    mock = spec.engine.mock.chunk_tokens if spec.engine.mock is not None else None
    tokens = (decode.max_num_batched_tokens or mock) if plan.layout == "colocated" else None
    return _given({"places": min(given, default=None), "stepTokens": tokens})


def _rules(spec: DisaggInferenceServiceSpec, plan: Plan) -> Mapping[str, Any]:
    """Return the policy with the parameters of the service or its plan; the router has the defaults."""
    routing, planned = spec.routing, plan.policy
    rules: dict[str, Any] = {
        "policy": routing.policy,
        "binding": routing.binding,
        "minCacheHitRatio": routing.min_cache_hit_ratio,
        "order": routing.order,
        "ageingCap": None if routing.ageing_cap == DEFAULT_CAP else routing.ageing_cap,
    }
    if plan.layout == "colocated":
        # There is nowhere else to prefill, whatever the policy would say; the order is what the plan was tried with.
        rules |= {
            "policy": "colocated",
            "order": planned.order if planned is not None else routing.order,
            "params": _parameters(spec, "colocated") or None,
        }
    else:
        chosen = planned if planned is not None and planned.route == routing.policy == "weft" else None
        rules |= {
            "mode": routing.mode or (chosen.mode if chosen is not None else None),
            "sliceShare": chosen.chunk_share if chosen is not None else None,
            "params": _parameters(spec, routing.policy) or None,
        }
    return {name: value for name, value in rules.items() if value is not None}


def _parameters(spec: DisaggInferenceServiceSpec, policy: str) -> dict[str, float]:
    """Return a policy's parameters: the service's where it is the service's policy, and the SLO's ITL statistic."""
    given = dict(spec.routing.params) if spec.routing.policy == policy else {}
    if policy in ("weft", "colocated") and spec.slo.itl_statistic != "mean":
        given.setdefault("itl_statistic", float(STATISTICS.index(spec.slo.itl_statistic)))
    return given


def live_json(rendering: Rendering) -> Mapping[str, Any]:
    """Return the reloadable configuration of routers: policies, thresholds, classes, tenants and adapters."""
    spec, routing = rendering.spec, rendering.spec.routing
    plan = rendering.rules or rendering.record.plan
    qos = _qos(spec, rendering.key.namespace)
    adapters = [{"name": name, "source": place} for name, place in adapter_places(spec).items()]
    return {
        **({"qos": qos} if qos else {}),
        **({"adapters": adapters} if loads_at_run_time(spec) else {}),
        "slo": {
            "ttft": parse_duration(spec.slo.ttft),
            "itl": parse_duration(spec.slo.itl),
            "attainment": spec.slo.attainment,
        },
        "routing": {
            **_rules(spec, plan),
            **_fixed(spec),
            "alpha": routing.alpha,
            "beta": routing.beta,
            "window": routing.window,
            **_step_limits(spec, plan),
            **_races(routing),
            **_class_rules(spec, plan),
            **({} if rendering.canary is None else {"canary": rendering.canary}),
            **(
                {"failOpenUrl": f"http://{rendering.key.name}.{rendering.key.namespace}.svc"}
                if rendering.fails_open
                else {}
            ),
        },
    }


def _fixed(spec: DisaggInferenceServiceSpec) -> dict[str, Any]:
    """Return the static part of routing: queues, windows and engine adapters."""
    routing, slices = spec.routing, spec.routing.slices
    config: dict[str, Any] = {
        "statsWindowSeconds": parse_duration(routing.stats_window),
        "sessionTtlSeconds": int(parse_duration(routing.session_ttl)),
        "prefillConcurrency": routing.prefill_concurrency,
        "seed": spec.planning.seed,
    }
    if slices is not None:
        config["slices"] = {
            "mode": slices.mode.lower(),
            "block": slices.block_tokens,
            "least": slices.least_tokens,
            "overheadSeconds": parse_duration(slices.overhead),
        }
    words = {"firstTokenFromPrefill": routing.first_token_from_prefill, "resume": routing.resume}
    return {**config, **{name: word.lower() for name, word in words.items() if word is not None}}


def front_json(rendering: Rendering) -> Mapping[str, Any]:
    """Return the static configuration of coordinators: that of routers, and what concerns clients."""
    spec = rendering.spec
    config = dict(router_json(rendering))
    config["limits"] = {**config["limits"], **_limits(spec.coordinator)}
    if spec.model.aliases:
        config["model"] = {**config["model"], "aliases": spec.model.aliases}
    if spec.coordinator.pooling_url is not None:
        config["poolingUrl"] = spec.coordinator.pooling_url
    if spec.coordinator.cors is not None:
        config["cors"] = {"allowedOrigins": spec.coordinator.cors.allowed_origins}
    asked = _requests(spec.coordinator)
    if asked:
        config["requests"] = asked
    auth = spec.coordinator.auth
    if auth.jwt is not None:
        config["auth"] = {"jwt": _jwt(auth.jwt)}
    rest = spec.planning.scale_to_zero
    if rest is not None:
        config["hold"] = {"seconds": parse_duration(rest.hold), "most": rest.max_held}
    tls = spec.coordinator.tls
    if tls is not None:
        config["tls"] = {
            "certFile": f"{TLS_FOLDER}/tls.crt",
            "keyFile": f"{TLS_FOLDER}/tls.key",
            "minVersion": _TLS_VERSIONS[tls.min_version],
        }
    return config


def _class_names(spec: DisaggInferenceServiceSpec) -> list[str]:
    """Return the classes that are more than a name, in order."""
    return sorted({item.name for item in (*(spec.routing.classes or ()), *(spec.slo.classes or ()))})


def _class_rules(spec: DisaggInferenceServiceSpec, plan: Plan) -> dict[str, Any]:
    """Return what each class does otherwise; in a co-located layout there is nowhere else to prefill."""
    rules: dict[str, dict[str, Any]] = {}
    for item in spec.routing.classes or ():
        own: dict[str, Any] = {"binding": item.binding}
        if plan.layout != "colocated":
            own |= {"policy": item.policy, "mode": item.mode, "params": item.params}
        rules[item.name] = _given(own)
    for limit in spec.slo.classes or ():
        times = {"ttft": limit.ttft, "itl": limit.itl}
        own_times = {name: parse_duration(value) for name, value in times.items() if value is not None}
        rules[limit.name] = {**rules.get(limit.name, {}), **own_times}
    kept = {name: own for name, own in rules.items() if own}
    return {"classes": kept} if kept else {}


def _races(routing: Routing) -> dict[str, Any]:
    hedge = routing.hedge
    config: dict[str, Any] = {}
    if hedge is not None:
        config["hedge"] = {"mode": hedge.mode.lower(), "top": hedge.top, "risk": hedge.risk}
    if routing.prediction_correction is not None:
        config["predictionCorrection"] = routing.prediction_correction.lower()
    if routing.on_prefill_failure is not None:
        config["onPrefillFailure"] = routing.on_prefill_failure.lower()
    return config


def _qos(spec: DisaggInferenceServiceSpec, namespace: str) -> dict[str, Any]:
    given = {item.name: _qos_class(item) for item in spec.routing.classes or ()}
    classes = {name: given.get(name, {}) for name in _class_names(spec)}
    return {**({"classes": classes} if classes else {}), **_qos_rules(spec.routing.qos, namespace)}


def _qos_rules(qos: Qos | None, namespace: str) -> dict[str, Any]:
    if qos is None:
        return {}
    pressure = qos.pressure
    config: dict[str, Any] = {
        "defaultClass": qos.default_class,
        "classHeader": qos.class_header,
        "classField": qos.class_field,
        "maxWaiting": qos.max_waiting,
    }
    if pressure is not None:
        config["pressure"] = {
            "kvUse": pressure.kv_use,
            "largest": pressure.largest_output,
            "least": pressure.least_output,
            "busy": pressure.busy_tasks,
        }
    if qos.fallback_service is not None:
        config["fallback"] = {
            "service": qos.fallback_service,
            "url": f"http://{qos.fallback_service}.{namespace}.svc",
        }
    if qos.tenants:
        config["tenants"] = {
            item.name: _given(
                {
                    "weight": item.weight,
                    "class": item.default_class,
                    "classes": item.classes,
                    "rates": _rates(item.rates),
                }
            )
            for item in qos.tenants
        }
    return config


def _qos_class(item: RequestClass) -> dict[str, Any]:
    return _given(
        {
            "priority": item.priority,
            "queueLimit": item.queue_limit,
            "concurrent": item.concurrent,
            "maxOutputTokens": item.max_output_tokens,
            "earlyRejection": item.early_rejection,
            "tolerance": item.tolerance,
            "outputCap": item.output_cap,
            "localOnly": item.local_only.lower(),
        }
    )


def _limits(coordinator: Coordinator) -> dict[str, Any]:
    limits = coordinator.limits
    return _given(
        {
            "maxConnections": limits.max_connections,
            "maxHeaderBytes": limits.max_header_bytes,
            "rates": _rates(limits.rates),
        }
    )


def _requests(coordinator: Coordinator) -> dict[str, Any]:
    requests = coordinator.requests
    if requests is None:
        return {}
    return _given(
        {
            "allowedFields": requests.allowed_fields,
            "mediaHosts": requests.allowed_media_hosts,
            "mediaOverHttp": requests.media_over_http,
        }
    )


def _rates(rates: Rates | None) -> dict[str, Any] | None:
    if rates is None:
        return None
    return _given(
        {
            "requestsPerSecond": rates.requests_per_second,
            "tokensPerMinute": rates.tokens_per_minute,
            "concurrent": rates.concurrent,
            "burstSeconds": None if rates.burst is None else parse_duration(rates.burst),
        }
    )


def _jwt(jwt: Jwt) -> dict[str, Any]:
    return _given(
        {
            "issuer": jwt.issuer,
            "audience": jwt.audiences,
            "jwksUrl": jwt.jwks_uri,
            "jwksFile": None if jwt.jwks_config_map_ref is None else f"{JWKS_FOLDER}/jwks.json",
            "algorithms": jwt.algorithms,
            "tenantClaim": jwt.tenant_claim,
            "classClaim": jwt.class_claim,
            "limitsClaim": jwt.limits_claim,
            "leewaySeconds": parse_duration(jwt.leeway),
        }
    )


def _telemetry(telemetry: Telemetry | None) -> dict[str, Any]:
    if telemetry is None:
        return {}
    config: dict[str, Any] = {}
    if telemetry.otlp_endpoint is not None:
        config["telemetry"] = {"otlpEndpoint": telemetry.otlp_endpoint, "sampleRatio": telemetry.sample_ratio}
    log = telemetry.access_log
    if log is not None:
        config["accessLog"] = {"to": log.mode.lower(), "sampleRatio": log.sample_ratio}
    return config


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
