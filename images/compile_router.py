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
    "weft_core/{timing,cost,heartbeat}",
    "weft_router/errors",
    "weft_router/api/{body,bounds,events,fields,fingerprint,inference,identity,media,nodes,reply,responses_tap,tap,tokens,transcript,usual}",
    "weft_router/engines/{adapter,deaths,handles,vllm,prefilled,openai,neuron,sglang,tensorrt_llm,watch,load,resume}",
    "weft_router/guard/{auth,key_file,classes,admission,shares,rates,salt,caller,door,hops}",
    "weft_router/roles/{app,front_app,sidecar,follower,placing,recognising,server,front,telling,front_counts,standalone,engine_pages}",
    "weft_router/roles/{coordinator,relay,decode,moving_hop,prefill,prefill_hop,reading}",
    "weft_router/rounds/{accounts,answering,affinity,placement,batch,deciding,decoding,dispatched,outlet,pairs,passing,peers}",
    "weft_router/rounds/{policies,prefill_port,prefill_queue,prefilling,remote,routing,round,sessions,standing,taking,turns,worker}",
    "weft_router/rounds/{job,canary}",
    "weft_router/signals/{access,decisions,ids,instruments,pace,request_log,rounds,window}",
    "weft_router/state/{bindings,gathered,registry,store}",
    "weft_router/wire/{budget,connection,exchange,request,head,heads,plain,response,upstream,pool,leg,lines,sse,light_task,turn,stream,link}",
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
            extension.extra_compile_args += FLAGS
            extension.extra_link_args += ["-flto=auto"]
        for package, parent in PACKAGES.items():
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(Path(parent, package), into / package, ignore=unwanted, dirs_exist_ok=True)
        words = ["build_ext", "--build-temp", build, "--build-lib", str(into)]
        setup(name="weft-router", script_args=["--quiet", *words], ext_modules=extensions, packages=[], py_modules=[])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, required=True, help="an empty or new folder")
    compile_into(parser.parse_args().into.resolve())
