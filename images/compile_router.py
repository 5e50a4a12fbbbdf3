"""Compile what a request goes through in the router: ``python images/compile_router.py --into FOLDER``.

Writes the packages into a new or empty folder, with a library beside each module of ``MODULES``. An interpreter that
has the folder first on its path runs these (docs/decisions/0017). Needs mypy with mypyc, setuptools and a C compiler.
"""

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from mypyc.build import mypycify
from setuptools import setup

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"weft_core": "core", "weft_router": "router"}
MODULES = (
    "weft_core/policies/{live,live_binding,estimates,finish,inputs,trust,snapshot,slices}",
    "weft_core/policies/routing/weft",
    "weft_core/policies/binding/kv_headroom",
    "weft_core/{timing,cost,heartbeat,worker_roles}",
    "weft_router/errors",
    "weft_router/anthropic/reply",
    "weft_router/auth/{access_control,authenticator,cache_salts,hops,key_file,principal}",
    "weft_router/engines/{adapter,deaths,handles,load,neuron,openai,resume,sglang,tensorrt_llm,vllm,vllm_prefill,watch}",
    "weft_router/http/{budget,client_memory,connection,deadlines,exchange,head,head_cache,header_lines,inline_task}",
    "weft_router/http/{link,pool,request,response,sse,stream,upstream_connection,upstream_request,whole_chunks}",
    "weft_router/http/{whole_response,write_batch}",
    "weft_router/limits/{admission,classifier,token_buckets,waiting_room}",
    "weft_router/openai/{body,bounds,event_filter,event_template,fields,fingerprint,identity,inference,media,nodes}",
    "weft_router/openai/{prompt_history,reply,responses_filter,stream_filter,tokens}",
    "weft_router/roles/{app,body_reader,coordinator,drain,engine_pages,failover,follower,front,front_app}",
    "weft_router/roles/{front_metrics,prefill_hop,relay,round_endpoint,server,session_hop,sidecar,sidecar_response}",
    "weft_router/roles/{gateway,gateway_relay,prompt_list,standalone}",
    "weft_router/picker/{app,relay,transport}",
    "weft_router/rounds/{accounting,decode_executor,decode_service,dual_dispatch,hedged_prefill,prefill_service,remote_prefill}",
    "weft_router/rounds/{message_writer,regeneration_writer,request_log,response_relay,response_writer,round_builder}",
    "weft_router/routing/{binding_policies,canary,class_policies,fresh_queues,in_flight_prefills,policy}",
    "weft_router/routing/{prefill_workers,prefix_cache_ages,prefix_placement,route_selector,session_placer}",
    "weft_router/sessions/{round,round_request,session,session_import,session_recognizer,session_table}",
    "weft_router/state/{bindings,call_batcher,registry,store}",
    "weft_router/telemetry/{access_log,decision_log,id_generator,instruments,round_meter,session_latency,sliding_window}",
    "weft_router/workers/{batch,engine_slots,prefill_client,prefill_queue,scheduling_priority,worker}",
)
"""The modules that a request goes through, and those with classes that inherit from theirs: all or none of a family."""
FLAGS = (
    # Decisions have to be the interpreter's to the last bit: ARM must not round ``a * b + c`` once only.
    "-ffp-contract=off",
    # One compiled module calls another's functions directly.
    "-fvisibility=hidden", "-fno-semantic-interposition", "-fno-plt", "-flto=auto",
    # What the collector does not know (``acyclic``) is freed at once at any depth.
    "-include", str(Path(__file__).with_name("untracked.h")),
)  # fmt: skip


def modules() -> list[str]:
    """Return the paths of ``MODULES`` in full."""
    found = []
    for pattern in MODULES:
        head, _, rest = pattern.partition("{")
        found += [f"{head}{name}.py" for name in rest.rstrip("}").split(",")] if rest else [f"{head}.py"]
    return found


def compile_into(into: Path) -> None:
    """Write the packages with their compiled modules into a folder.

    Raises:
        SystemExit: a compiler failed; it has said why.
    """
    os.chdir(ROOT)
    os.environ["MYPYPATH"] = os.pathsep.join(PACKAGES.values())
    with tempfile.TemporaryDirectory() as build:
        options = ["--explicit-package-bases", "--ignore-missing-imports", "--follow-imports=silent"]
        paths = [f"{PACKAGES[path.partition('/')[0]]}/{path}" for path in modules()]
        extensions = mypycify([*options, *paths], debug_level="0", multi_file=True, opt_level="2", target_dir=build)
        for extension in extensions:
            extension.extra_compile_args.extend(FLAGS)
            extension.extra_link_args.append("-flto=auto")
        for package, parent in PACKAGES.items():
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(Path(parent, package), into / package, ignore=unwanted, dirs_exist_ok=True)
        words = ["build_ext", "--build-temp", build, "--build-lib", str(into)]
        setup(name="weft-router", script_args=["--quiet", *words], ext_modules=extensions, packages=[], py_modules=[])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, required=True, help="an empty or new folder")
    compile_into(parser.parse_args().into.resolve())
