"""Services that ``kubectl apply`` must refuse for what they say of classes, tenants, tokens, TLS and traces."""

from typing import Any

from weft_operator_tests.invalid_case import Case, one_change

JWT: dict[str, Any] = {"issuer": "https://login.example.com/", "audiences": ["weft"]}
URI: dict[str, Any] = {"jwksUri": "https://login.example.com/keys.json"}
TENANTS: tuple[dict[str, Any], ...] = ({"defaultClass": "gold"}, {"classes": ["default", "gold"]})


def one_class(case: str, *, rule: str = "", words: tuple[str, ...] = (), **fields: Any) -> Case:
    """Return a service with one class of requests."""
    return one_change(case, "spec.routing.classes", [{"name": "batch", **fields}], rule=rule, words=words)


def jwt(name: str, *, rule: str = "", words: tuple[str, ...] = (), **fields: Any) -> Case:
    """Return a service with tokens."""
    return one_change(name, "spec.coordinator.auth.jwt", {**JWT, **fields}, rule=rule, words=words)


FRONT_CASES: tuple[Case, ...] = (
    one_change(
        "fewer-coordinators-than-the-fewest",
        "spec.coordinator",
        {"replicas": 3, "scaling": {"max": 2}},
        rule="spec.coordinator.scaling.max: is below replicas, the fewest; raise it or lower replicas",
    ),
    one_change(
        "media-from-an-address",
        "spec.coordinator.requests",
        {"allowedMediaHosts": ["169.254.169.254"]},
        words=("requests.allowedMediaHosts[0]", "should match"),
    ),
    one_change(
        "a-field-that-is-no-name",
        "spec.coordinator.requests",
        {"allowedFields": ["*"]},
        words=("requests.allowedFields[0]", "should match"),
    ),
    *(
        one_change(
            f"a-field-of-the-routers-own-{field}",
            "spec.coordinator.requests",
            {"allowedFields": ["chat_template", field]},
            rule="spec.coordinator.requests.allowedFields: names a field of the router's own, such as "
            "kv_transfer_params or session_id; these reach no engine whatever is allowed, so remove it",
        )
        for field in ("kv_transfer_params", "Session_ID", "bootstrap_host", "nvext.annotations")
    ),
    one_change(
        "media-over-http-from-nowhere",
        "spec.coordinator.requests",
        {"mediaOverHttp": True},
        rule="spec.coordinator.requests.mediaOverHttp: says how allowedMediaHosts are asked; set these, or remove it",
    ),
    one_class("class-with-capitals", name="Batch", words=("spec.routing.classes[0].name", "should match")),
    one_class("priority-below-zero", priority=-1, words=("classes[0].priority", "greater than or equal to 0")),
    one_class("no-tolerance", tolerance=0, words=("classes[0].tolerance", "greater than 0")),
    one_class("sometimes-local", localOnly="Sometimes", words=("classes[0].localOnly", "Unsupported value")),
    one_class("nothing-to-say", maxOutputTokens=0, words=("classes[0].maxOutputTokens", "equal to 1")),
    one_class("class-of-odd-policy", policy="random", words=("classes[0].policy", "Unsupported value")),
    one_class(
        "class-mode-without-policy",
        mode="ia",
        rule="spec.routing.classes.mode: only policy weft has modes; set policy weft beside it, or remove it",
    ),
    one_class(
        "class-that-is-a-layout",
        policy="colocated",
        rule="spec.routing.classes.policy: colocated is a layout of the whole service; use always-local",
    ),
    one_class(
        "class-parameters-without-policy",
        params={"x": 0.5},
        rule="spec.routing.classes.params: belong to a policy; set the class's policy beside them",
    ),
    one_class(
        "class-parameter-of-another-policy",
        policy="fixed-x",
        params={"w_ttft": 1},
        rule="spec.routing.classes.params: parameters of fixed-x: x (0 to 1)",
    ),
    one_class(
        "class-parameters-of-ampd",
        policy="ampd",
        params={"alpha": 1},
        rule="spec.routing.classes.params: parameters of ampd: none; set spec.routing.alpha and beta",
    ),
    one_change(
        "same-request-class-twice",
        "spec.routing.classes",
        [{"name": "batch"}, {"name": "batch"}],
        words=("spec.routing.classes[1]", "Duplicate value"),
    ),
    one_change(
        "default-class-that-is-none",
        "spec.routing.qos",
        {"defaultClass": "gold"},
        rule="spec.routing.qos.defaultClass: is neither in spec.routing.classes nor in spec.slo.classes; add it there",
    ),
    *(
        one_change(
            f"tenant-of-no-class-{number}",
            "spec.routing.qos",
            {"tenants": [{"name": "acme", **field}]},
            rule="spec.routing.qos.tenants: name a class that is neither in spec.routing.classes nor in "
            "spec.slo.classes; add it there",
        )
        for number, field in enumerate(TENANTS)
    ),
    one_change(
        "tenant-of-everyone",
        "spec.routing.qos",
        {"tenants": [{"name": "default"}]},
        rule="spec.routing.qos.tenants.name: default stands for everyone where nobody has to say who they are; "
        "choose another name",
    ),
    one_change(
        "tenant-with-a-blank",
        "spec.routing.qos",
        {"tenants": [{"name": "acme inc"}]},
        words=("spec.routing.qos.tenants[0].name", "should match"),
    ),
    one_change(
        "same-tenant-twice",
        "spec.routing.qos",
        {"tenants": [{"name": "acme"}, {"name": "acme"}]},
        words=("spec.routing.qos.tenants[1]", "Duplicate value"),
    ),
    one_change(
        "tenant-without-weight",
        "spec.routing.qos",
        {"tenants": [{"name": "acme", "weight": 0}]},
        words=("tenants[0].weight", "greater than 0"),
    ),
    one_change(
        "least-above-largest",
        "spec.routing.qos",
        {"pressure": {"leastOutput": 5000}},
        rule="spec.routing.qos.pressure: leastOutput is above largestOutput; lower it",
    ),
    one_change(
        "header-with-a-blank",
        "spec.routing.qos",
        {"classHeader": "X Class"},
        words=("spec.routing.qos.classHeader", "should match"),
    ),
    one_change(
        "burst-of-a-day",
        "spec.coordinator.limits",
        {"rates": {"requestsPerSecond": 1, "burst": "24h"}},
        rule="spec.coordinator.limits.rates.burst, and that of tenants: must be between 1s and 1h",
    ),
    one_change(
        "rate-of-zero",
        "spec.coordinator.limits",
        {"rates": {"tokensPerMinute": 0}},
        words=("spec.coordinator.limits.rates.tokensPerMinute", "greater than 0"),
    ),
    jwt("tokens-without-keys", rule="spec.coordinator.auth.jwt: give exactly one of jwksUri and jwksConfigMapRef"),
    jwt(
        "tokens-with-keys-twice",
        **URI,
        jwksConfigMapRef={"name": "keys", "key": "jwks.json"},
        rule="spec.coordinator.auth.jwt: give exactly one of jwksUri and jwksConfigMapRef",
    ),
    jwt("keys-in-plain-text", jwksUri="http://login.example.com/keys", words=("auth.jwt.jwksUri", "should match")),
    jwt(
        "keys-behind-a-password",
        jwksUri="https://me:secret@login.example.com/keys",
        rule="spec.coordinator.auth.jwt.jwksUri: must hold no user name or password; remove them",
    ),
    jwt("shared-secret", **URI, algorithms=["HS256"], words=("auth.jwt.algorithms[0]", "Unsupported value")),
    jwt("tokens-for-nobody", **URI, audiences=[], words=("auth.jwt.audiences", "at least 1 items")),
    jwt(
        "clocks-an-hour-apart",
        **URI,
        leeway="1h",
        rule="spec.coordinator.auth.jwt.leeway: must be at most 5m; clocks that differ more need a time server",
    ),
    one_change("tls-without-secret", "spec.coordinator.tls", {}, words=("spec.coordinator.tls.secretRef: Required",)),
    one_change(
        "tls-of-1999",
        "spec.coordinator.tls",
        {"secretRef": {"name": "front-tls"}, "minVersion": "VersionTLS10"},
        words=("spec.coordinator.tls.minVersion", "Unsupported value"),
    ),
    one_change(
        "collector-without-scheme",
        "spec.telemetry",
        {"otlpEndpoint": "collector:4317"},
        words=("spec.telemetry.otlpEndpoint", "should match"),
    ),
    one_change(
        "more-than-all-traces", "spec.telemetry", {"sampleRatio": 2}, words=("spec.telemetry.sampleRatio", "equal to 1")
    ),
    one_change(
        "slices-of-a-minute",
        "spec.routing.slices",
        {"overhead": "1m"},
        rule="spec.routing.slices.overhead: must be at most 10s; 5ms is common",
    ),
    one_change("unknown-resume", "spec.routing.resume", "Maybe", words=("spec.routing.resume", "Unsupported value")),
)
