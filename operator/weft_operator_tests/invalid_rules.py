"""Services that ``kubectl apply`` must refuse for what several fields say together, and for bounds of newer fields."""

from weft_operator_tests.invalid_case import Case, managed_flags, one_change
from weft_operator_tests.valid import REMOVED, VLLM, changed, service, vllm_service

HOURS = {"name": "office", "days": ["Mon"], "begin": "08:00", "end": "18:00"}
POOL = {"name": "h20", "gpuType": "nvidia-h20"}

RESERVED = (
    "spec.engine.env: names that begin with WEFT_, POD_, NODE_, VLLM_NIXL_, VLLM_DP_, VLLM_RAY_DP_, "
    "NEURON_RT_ASYNC_SENDRECV or DYN_, the host, port and API key of vLLM and SGLang, and where their KV tiers are, "
    "are set by the operator; remove this one"
)

RULE_CASES: tuple[Case, ...] = (
    one_change(
        "long-name",
        "metadata.name",
        "a" * 41,
        rule="metadata.name: use at most 40 characters a-z, 0-9 and -, beginning with a letter; "
        "names of workers and Services are made from it",
    ),
    one_change(
        "name-with-dot",
        "metadata.name",
        "llama.70b",
        rule="metadata.name: use at most 40 characters a-z, 0-9 and -, beginning with a letter; "
        "names of workers and Services are made from it",
    ),
    one_change(
        "vllm-without-image",
        "spec.engine.type",
        "vllm",
        rule="spec.engine.image: is needed for every type but mock; name one with vLLM 0.32, SGLang 0.5, "
        "TensorRT-LLM 1.3 or newer, or Neuron's fork of vLLM 0.9.1",
    ),
    Case(
        "mock-settings-for-vllm",
        changed(vllm_service(), "spec.engine", {**VLLM, "mock": {"timeScale": 0.5}}),
        rule="spec.engine.mock: only for type mock; remove it or set spec.engine.type to mock",
    ),
    Case(
        "argument-of-the-operator",
        changed(vllm_service(), "spec.engine.args", ["--tensor-parallel-size=2"]),
        rule=managed_flags("vllm"),
    ),
    Case(
        "argument-with-underscores",
        changed(vllm_service(), "spec.engine.args", ["--kv_transfer_config", "{}"]),
        rule=managed_flags("vllm"),
    ),
    *(
        Case(f"argument-{words[0]}", changed(vllm_service(), "spec.engine.args", words), rule=managed_flags("vllm"))
        for words in (
            ["-tp", "4"],
            ["-dp=8"],
            ["-n2"],
            ["--data-parallel-size", "8"],
            ["--tensor-par", "4"],
            ["--kv_transfer_config.kv_role=kv_both"],
            ["--config", "/models/serve.yaml"],
            ["--host", "0.0.0.0"],
            ["--uds=/tmp/engine"],
        )
    ),
    Case(
        "argument-from-a-variable",
        changed(
            vllm_service(),
            "spec.engine",
            {**VLLM, "env": [{"name": "MORE", "value": "--host=::"}], "args": ["$(MORE)"]},
        ),
        rule="spec.engine.args: only a value may come from a variable; write --flag=$(NAME)",
    ),
    one_change("variable-as-a-flag", "spec.engine.env", [{"name": "VLLM_API_KEY", "value": "x"}], rule=RESERVED),
    one_change(
        "variable-of-neuron-s-transfers",
        "spec.engine.env",
        [{"name": "NEURON_RT_ASYNC_SENDRECV_BOOTSTRAP_PORT", "value": "1"}],
        rule=RESERVED,
    ),
    one_change(
        "variable-of-the-operator",
        "spec.engine.env",
        [{"name": "POD_IP", "value": "10.0.0.1"}],
        rule=RESERVED,
    ),
    one_change(
        "ttft-below-itl",
        "spec.slo",
        {"ttft": "30ms", "itl": "40ms"},
        rule="spec.slo.ttft: must be longer than spec.slo.itl; a prefill takes longer than one decode step",
    ),
    one_change(
        "itl-of-zero",
        "spec.slo.itl",
        "0ms",
        rule="spec.slo.itl: must be longer than 0; 50ms is common",
    ),
    one_change(
        "degree-of-three",
        "spec.capacity.pools.0.degrees",
        [1, 3],
        rule="spec.capacity.pools.degrees: must be powers of two (1, 2, 4, 8, 16, 32, 64)",
    ),
    one_change(
        "degree-that-fills-a-node-in-part",
        "spec.capacity.pools.0.gpusPerNode",
        3,
        rule="spec.capacity.pools.degrees: those above gpusPerNode fill whole nodes; choose multiples of gpusPerNode",
    ),
    one_change(
        "stages-that-fill-a-node-in-part",
        "spec.capacity.pools.0.parallelism",
        [{"tp": 8}, {"tp": 4, "pp": 3}],
        rule="spec.capacity.pools.parallelism: tp x pp x dp above gpusPerNode must fill whole nodes; choose a multiple "
        "of gpusPerNode",
    ),
    one_change(
        "rank-beyond-a-node",
        "spec.capacity.pools.0.parallelism",
        [{"tp": 8, "pp": 2, "dp": 2}],
        rule="spec.capacity.pools.parallelism: data-parallel ranks lie on one node each and fill it; choose a tp x pp "
        "that divides gpusPerNode",
    ),
    one_change(
        "ranks-that-leave-gaps",
        "spec.capacity.pools.0.parallelism",
        [{"pp": 3, "dp": 8}],
        rule="spec.capacity.pools.parallelism: data-parallel ranks lie on one node each and fill it; choose a tp x pp "
        "that divides gpusPerNode",
    ),
    one_change(
        "more-nodes-than-a-worker-has",
        "spec.capacity.pools.0.parallelism",
        [{"tp": 8}, {"tp": 8, "dp": 65}],
        rule="spec.capacity.pools.parallelism: tp x pp x dp is above 64 x gpusPerNode, and a worker lies on at most 64 "
        "nodes; lower dp, pp or tp",
    ),
    one_change(
        "nobody-prefills",
        "spec.capacity.pools.0.roles",
        ["decode"],
        rule="spec.capacity.pools: no pool has the role prefill; add it to the roles of one",
    ),
    one_change(
        "nobody-decodes",
        "spec.capacity.pools.0.roles",
        ["prefill"],
        rule="spec.capacity.pools: no pool has the role decode; add it to the roles of one",
    ),
    one_change(
        "pool-above-the-budget",
        "spec.capacity.pools.0.gpus",
        32,
        rule="spec.capacity.pools.gpus: is above spec.capacity.gpus; lower it or raise the budget",
    ),
    one_change(
        "rdma-is-the-gpu",
        "spec.capacity.pools.0.rdma",
        {"resource": "nvidia.com/gpu"},
        rule="spec.capacity.pools.rdma.resource: is the same as the GPU's resource; name the network device's",
    ),
    one_change(
        "toleration-with-value",
        "spec.capacity.pools.0.tolerations",
        [{"key": "gpu", "operator": "Exists", "value": "h20"}],
        rule="tolerations: operator Exists takes no value; remove value or use operator Equal",
    ),
    one_change(
        "toleration-without-key",
        "spec.capacity.pools.0.tolerations",
        [{"value": "h20"}],
        rule="tolerations: operator Equal needs a key; add it or use operator Exists",
    ),
    one_change(
        "two-profiles",
        "spec.profile",
        {"ref": {"name": "measured"}, "analytic": {}},
        rule="spec.profile: give at most one of ref, refs and analytic",
    ),
    one_change(
        "measured-in-no-time",
        "spec.profile",
        {"analytic": {}, "measure": {"budget": "5s"}},
        rule="spec.profile.measure.budget: must be between 30s and 2h",
    ),
    one_change(
        "min-above-max",
        "spec.planning.prefill",
        {"min": 3, "max": 2},
        rule="spec.planning: min is above max; lower min or raise max",
    ),
    one_change(
        "looks-too-often",
        "spec.planning.interval",
        "500ms",
        rule="spec.planning.interval: must be between 1s and 10m",
    ),
    one_change(
        "bounds-above-the-budget",
        "spec.planning",
        {"layouts": ["disaggregated"], "prefill": {"min": 10}, "decode": {"min": 7}},
        rule="spec.capacity.gpus: too few for spec.planning.prefill.min and spec.planning.decode.min workers of the "
        "smallest degrees; raise gpus, lower a min, or allow a smaller degree",
    ),
    Case(
        "one-gpu-for-two-roles",
        changed(changed(service(), "spec.capacity.gpus", 1), "spec.planning.layouts", ["disaggregated"]),
        rule="spec.capacity.gpus: too few for spec.planning.prefill.min and spec.planning.decode.min workers of the "
        "smallest degrees; raise gpus, lower a min, or allow a smaller degree",
    ),
    Case(
        "one-gpu-for-two-workers",
        changed(changed(service(), "spec.capacity.gpus", 1), "spec.planning.layouts", ["symmetric"]),
        rule="spec.capacity.gpus: too few for spec.planning.prefill.min and spec.planning.decode.min workers of the "
        "smallest degrees; raise gpus, lower a min, or allow a smaller degree",
    ),
    one_change(
        "session-longer-than-context",
        "spec.model.maxModelLen",
        4096,
        rule="spec.workload: the mean session is longer than spec.model.maxModelLen; "
        "raise maxModelLen or shorten the workload",
    ),
    one_change(
        "variation-below-zero", "spec.workload.decode.cv", -0.5, words=("spec.workload.decode.cv", "equal to 0")
    ),
    one_change(
        "unknown-arrivals", "spec.workload.arrivals", {"process": "pareto"}, words=("arrivals.process", "Unsupported")
    ),
    one_change(
        "gap-quantiles-without-unit",
        "spec.workload.gap",
        {"mean": "2s", "quantiles": {"at": [0, 1], "values": ["0", "4"]}},
        words=("spec.workload.gap.quantiles.values[0]", "should match"),
    ),
    one_change(
        "class-without-share",
        "spec.workload.classes",
        [{"name": "chat"}],
        words=("spec.workload.classes[0].share: Required value",),
    ),
    one_change(
        "same-class-twice",
        "spec.workload.classes",
        [{"name": "chat", "share": 1}, {"name": "chat", "share": 2}],
        words=("spec.workload.classes[1]", "Duplicate value"),
    ),
    one_change("preset-of-words", "spec.workload.preset", "GAIA", words=("spec.workload.preset", "should match")),
    one_change(
        "two-shapes",
        "spec.workload.increment",
        {"mean": 800, "cv": 1, "quantiles": {"at": [0, 1], "values": [1, 1600]}},
        rule="spec.workload: give at most one of cv, quantiles and histogram of a figure; remove the others",
    ),
    one_change(
        "quantiles-that-end-early",
        "spec.workload.decode.quantiles",
        {"at": [0, 0.5], "values": [1, 600]},
        rule="spec.workload.quantiles: at must rise from 0 to 1 and be as long as values; correct the lists",
    ),
    one_change(
        "quantiles-that-fall",
        "spec.workload.decode.quantiles",
        {"at": [0, 0.5, 1], "values": [1, 600, 500]},
        rule="spec.workload.quantiles: values must not fall; sort them",
    ),
    one_change(
        "gaps-that-fall",
        "spec.workload.gap.quantiles",
        {"at": [0, 0.5, 1], "values": ["0s", "1m", "50s"]},
        rule="spec.workload.quantiles: values must not fall; sort them",
    ),
    one_change(
        "histogram-without-weight",
        "spec.workload.rounds.histogram",
        {"edges": [1, 5, 9], "weights": [0, 0]},
        rule="spec.workload.histogram: edges must not fall and be one more than weights, of which one must be above 0; "
        "correct the lists",
    ),
    one_change(
        "bursts-without-variation",
        "spec.workload.arrivals",
        {"process": "gamma"},
        rule="spec.workload.arrivals.cv: needed for process gamma and for no other; add or remove it",
    ),
    one_change(
        "replay-of-nothing",
        "spec.workload.arrivals",
        {"process": "replayed"},
        rule="spec.workload.arrivals.timestamps: needed for process replayed and for no other; add or remove them",
    ),
    one_change(
        "timestamps-that-fall",
        "spec.workload.arrivals",
        {"process": "replayed", "timestamps": [0, 3, 2]},
        rule="spec.workload.arrivals.timestamps: must not fall, and not all be the same; sort them",
    ),
    one_change(
        "preset-and-trace",
        "spec.workload",
        {"preset": "ampd/gaia", "traceConfigMap": {"name": "trace", "key": "all"}, "arrivalRate": 1},
        rule="spec.workload: give one of preset and traceConfigMap; remove the other",
    ),
    one_change(
        "no-increment",
        "spec.workload.increment",
        REMOVED,
        rule="spec.workload: needs rounds, firstPrompt, increment and decode; add them, a preset or a traceConfigMap",
    ),
    one_change(
        "preset-without-rate",
        "spec.workload",
        {"preset": "ampd/gaia"},
        rule="spec.workload.arrivalRate: is needed, in sessions per second; add it",
    ),
    one_change(
        "slo-of-no-class",
        "spec.slo.classes",
        [{"name": "chat", "ttft": "1s"}],
        rule="spec.slo.classes: names a class that spec.workload.classes lacks; add it there or remove it here",
    ),
    one_change("slo-per-token", "spec.slo.unit", "token", words=("spec.slo.unit", "Unsupported value")),
    one_change("itl-as-median", "spec.slo.itlStatistic", "p50", words=("spec.slo.itlStatistic", "Unsupported value")),
    one_change(
        "schedule-of-nothing",
        "spec.planning.schedules",
        [HOURS],
        rule="spec.planning.schedules: sets no bound in these hours; give prefill, decode or gpus",
    ),
    one_change(
        "schedule-beyond-the-budget",
        "spec.planning.schedules",
        [{**HOURS, "gpus": 64}],
        rule="spec.planning.schedules.gpus: is more than spec.capacity.gpus, the most there may be; lower it, or raise "
        "spec.capacity.gpus",
    ),
    one_change(
        "schedule-at-25",
        "spec.planning.schedules",
        [{**HOURS, "begin": "25:00", "gpus": 8}],
        words=("spec.planning.schedules[0].begin", "should match"),
    ),
    one_change(
        "schedule-on-no-day",
        "spec.planning.schedules",
        [{**HOURS, "days": ["Monday"], "gpus": 8}],
        words=("spec.planning.schedules[0].days[0]", "Unsupported value"),
    ),
    one_change(
        "two-schedules-of-a-name",
        "spec.planning.schedules",
        [{**HOURS, "gpus": 8}, {**HOURS, "gpus": 4}],
        words=("spec.planning.schedules[1]", "Duplicate value"),
    ),
    one_change(
        "zero-for-latency",
        "spec.planning",
        {"objective": "latency", "scaleToZero": {}},
        rule="spec.planning.scaleToZero: only objective cost takes GPUs away; set spec.planning.objective to cost, or "
        "remove scaleToZero",
    ),
    one_change(
        "zero-after-no-time",
        "spec.planning",
        {"objective": "cost", "scaleToZero": {"after": "10s"}},
        rule="spec.planning.scaleToZero.after: must be between 1m and 24h; 30m is common",
    ),
    one_change(
        "hold-for-a-day",
        "spec.planning",
        {"objective": "cost", "scaleToZero": {"hold": "24h"}},
        rule="spec.planning.scaleToZero.hold: must be between 1s and 1h; a little more than a worker takes to start",
    ),
    one_change(
        "hold-nobody",
        "spec.planning",
        {"objective": "cost", "scaleToZero": {"maxHeld": 0}},
        words=("spec.planning.scaleToZero.maxHeld", "greater than or equal to 1"),
    ),
    one_change("unknown-layout", "spec.planning.layouts", ["ring"], words=("planning.layouts[0]", "Unsupported value")),
    one_change("no-layout", "spec.planning.layouts", [], words=("spec.planning.layouts", "at least 1 items")),
    one_change(
        "same-layout-twice",
        "spec.planning.layouts",
        ["colocated", "colocated"],
        words=("planning.layouts[1]", "Duplicate value"),
    ),
    Case(
        "colocated-without-a-pool",
        changed(
            changed(service(), "spec.planning", {"layouts": ["disaggregated", "colocated"]}),
            "spec.capacity.pools",
            [{**POOL, "roles": ["prefill"]}, {**POOL, "name": "h100", "roles": ["decode"]}],
        ),
        rule="spec.planning.layouts: all but disaggregated need a pool with the roles prefill and decode; add the "
        "missing one, or allow disaggregated alone",
    ),
    one_change(
        "policy-without-prefill-workers",
        "spec.routing.policy",
        "colocated",
        rule="spec.routing.policy: colocated leaves prefill workers idle; set spec.planning.layouts to [colocated], or "
        "choose another policy",
    ),
    one_change("no-profiles", "spec.profile", {"refs": []}, words=("spec.profile.refs", "at least 1 items")),
    one_change(
        "same-profile-twice",
        "spec.profile",
        {"refs": [{"name": "measured"}, {"name": "measured"}]},
        words=("spec.profile.refs[1]", "Duplicate value"),
    ),
    one_change(
        "mixed-degrees-as-text",
        "spec.planning.mixedDegrees",
        "maybe",
        words=("mixedDegrees", "must be of type boolean"),
    ),
    one_change(
        "price-below-zero", "spec.capacity.pools.0.pricePerGpuHour", -1, words=("pricePerGpuHour", "equal to 0")
    ),
    one_change(
        "link-of-nothing",
        "spec.capacity.pools.0.interconnect",
        {"acrossNodes": 0},
        words=("interconnect.acrossNodes", "greater than 0"),
    ),
    one_change(
        "budget-of-nothing", "spec.planning.budgetPerHour", 0, words=("spec.planning.budgetPerHour", "greater than 0")
    ),
    one_change(
        "budget-without-prices",
        "spec.planning.budgetPerHour",
        40,
        rule="spec.planning.budgetPerHour: needs spec.capacity.pools.pricePerGpuHour of every pool; add it",
    ),
    one_change(
        "error-of-ten", "spec.planning.predictionError", 10, words=("predictionError", "less than or equal to 2")
    ),
    one_change("headroom-of-twenty", "spec.planning.headroom", 20, words=("spec.planning.headroom", "equal to 10")),
    one_change("improvement-as-percent", "spec.planning.minImprovement", 5, words=("minImprovement", "equal to 1")),
    one_change(
        "cooldown-of-days",
        "spec.planning.cooldown",
        "25h",
        rule="spec.planning.cooldown: must be at most 24h; 10m is common",
    ),
    one_change(
        "shrinking-at-once",
        "spec.planning.drift",
        {"shrinkAfter": "5s"},
        rule="spec.planning.drift.shrinkAfter: must be between 1m and 24h; 30m is common",
    ),
    one_change("burn-of-nothing", "spec.planning.drift", {"burnRate": 0}, words=("drift.burnRate", "greater than 0")),
    one_change("drift-of-one-round", "spec.planning.drift", {"minSamples": 1}, words=("minSamples", "equal to 5")),
    one_change("mode-of-the-moon", "spec.planning.mode", "Lunar", words=("spec.planning.mode", "Unsupported value")),
    one_change("ratio-of-zero", "spec.planning.ratio", {"min": 0}, words=("spec.planning.ratio.min", "greater than 0")),
    one_change(
        "ratio-upside-down",
        "spec.planning.ratio",
        {"min": 2, "max": 1},
        rule="spec.planning.ratio: min is above max; lower min or raise max",
    ),
    Case(
        "class-slo-of-zero",
        changed(
            changed(service(), "spec.workload.classes", [{"name": "chat", "share": 1}]),
            "spec.slo.classes",
            [{"name": "chat", "itl": "0s"}],
        ),
        rule="spec.slo.classes: ttft and itl must be longer than 0; leave one out to take the service's",
    ),
    one_change(
        "mode-of-another-policy",
        "spec.routing",
        {"policy": "ampd", "mode": "ia"},
        rule="spec.routing.mode: only policy weft has modes; remove it, or set policy weft",
    ),
    one_change(
        "parameter-of-another-policy",
        "spec.routing",
        {"policy": "fixed-x", "params": {"w_ttft": 1}},
        rule="spec.routing.params: parameters of fixed-x: x (0 to 1)",
    ),
    one_change(
        "parameter-out-of-range",
        "spec.routing",
        {"policy": "fixed-x", "params": {"x": 1.5}},
        rule="spec.routing.params: parameters of fixed-x: x (0 to 1)",
    ),
    one_change(
        "table-of-another-policy",
        "spec.routing",
        {"policy": "ampd", "tableConfigMapRef": {"name": "learned", "key": "table.json"}},
        rule="spec.routing.tableConfigMapRef: only policy ppd has a table; remove it, or set policy ppd",
    ),
    one_change(
        "alpha-of-another-policy",
        "spec.routing",
        {"alpha": 0.5},
        rule="spec.routing.alpha: alpha and beta are those of policy ampd; "
        "set spec.routing.policy to ampd, or remove them",
    ),
    one_change(
        "parameters-of-ampd",
        "spec.routing",
        {"policy": "ampd", "params": {"alpha": 0.5}},
        rule="spec.routing.params: parameters of ampd: none; set spec.routing.alpha and beta",
    ),
    one_change("unknown-order", "spec.routing.order", "random", words=("spec.routing.order", "Unsupported value")),
    one_change("no-ageing", "spec.routing.ageingCap", 0, words=("spec.routing.ageingCap", "equal to 1")),
    one_change(
        "no-statistics",
        "spec.routing.statsWindow",
        "10ms",
        rule="spec.routing.statsWindow: must be between 1s and 10m",
    ),
    one_change(
        "sessions-of-a-second",
        "spec.routing.sessionTTL",
        "1s",
        rule="spec.routing.sessionTTL: must be between 1m and 168h",
    ),
    one_change(
        "drain-for-a-day",
        "spec.rollout.drainTimeout",
        "24h",
        rule="spec.rollout.drainTimeout: must be between 1s and 1h",
    ),
    one_change(
        "no-time-to-start",
        "spec.rollout.startTimeout",
        "1s",
        rule="spec.rollout.startTimeout: must be between 10s and 24h; 30m is common",
    ),
    one_change(
        "no-time-to-find-a-node",
        "spec.rollout.unschedulableTimeout",
        "48h",
        rule="spec.rollout.unschedulableTimeout: must be between 10s and 24h; 10m is common",
    ),
    one_change(
        "canary-without-time",
        "spec.rollout.canary",
        {"window": "1s"},
        rule="spec.rollout.canary.window: must be between 10s and 24h; 10m is common",
    ),
    one_change(
        "canary-that-ends-before-it-is-judged",
        "spec.rollout.canary",
        {"window": "10m", "maxWindow": "5m"},
        rule="spec.rollout.canary.maxWindow: is below window; raise it, or remove it: three windows are the default",
    ),
    one_change(
        "canary-for-ever",
        "spec.rollout.canary",
        {"maxWindow": "400h"},
        rule="spec.rollout.canary.maxWindow: must be at most 168h; three windows are the default",
    ),
)
