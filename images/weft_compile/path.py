"""Which modules are compiled: those that a usual request goes through."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = {"weft_core": "core", "weft_router": "router"}
PATH = (
    "weft_core/policies/{live,live_binding,estimates,finish,inputs,trust,snapshot,slices}",
    "weft_core/policies/routing/weft",
    "weft_core/policies/binding/kv_headroom",
    "weft_core/{timing,cost,heartbeat}",
    "weft_router/errors",
    "weft_router/api/{body,bounds,events,fields,fingerprint,inference,identity,media,nodes,reply,responses_tap,tap,tokens,transcript,usual}",
    "weft_router/engines/{adapter,deaths,handles,vllm,prefilled,openai,neuron,sglang,tensorrt_llm,watch,load,resume}",
    "weft_router/guard/{auth,key_file,classes,admission,shares,rates,salt,caller,door,hops}",
    "weft_router/roles/{app,front_app,sidecar,follower,placing,recognising,server,front,telling,front_counts,standalone,engine_pages}",
    "weft_router/roles/{coordinator,relay,decode,moving_hop,prefill,prefill_hop,reading}",
    "weft_router/rounds/{accounts,answering,affinity,placement,batch,deciding,decoding,dispatched,outlet,pairs,passing}",
    "weft_router/rounds/{policies,prefill_queue,prefilling,remote,routing,round,sessions,standing,taking,turns,worker,job,canary}",
    "weft_router/signals/{access,decisions,ids,instruments,pace,request_log,rounds,window}",
    "weft_router/state/{bindings,gathered,registry,store}",
    "weft_router/wire/{budget,connection,exchange,request,head,heads,plain,response,upstream,pool,leg,lines,sse,light_task,turn,stream,link}",
)
"""The modules that a usual request goes through, and those with classes that inherit from theirs: all or none of a
family can be compiled."""

UNTRACKED = frozenset({"PrefillTask", "Entry", "Transcript", "Session", "KvHandle", "Pace", "_Word", "_Binding"})
"""Classes of which each session, or each round for some seconds, keeps objects. None of them leads back to itself, so
the collector need not know of them: it went through some 300,000 at a time, and all streams waited."""


def modules() -> list[str]:
    """Return the paths of ``PATH`` in full."""
    found = []
    for pattern in PATH:
        head, _, rest = pattern.partition("{")
        found += [f"{head}{name}.py" for name in rest.rstrip("}").split(",")] if rest else [f"{head}.py"]
    return found


@cache
def native() -> frozenset[tuple[str, str]]:
    """Return module and name of every function and class that compiled code calls without a look at a module's dict."""
    found = set()
    for path in modules():
        tree = ast.parse((ROOT / PACKAGES[path.partition("/")[0]] / path).read_text())
        for node in tree.body:
            interpreted = isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not interpreted:
                found.add((path.removesuffix(".py").replace("/", "."), node.name))
    return frozenset(found)
