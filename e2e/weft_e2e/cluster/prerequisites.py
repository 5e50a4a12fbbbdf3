"""Puts what the local cluster needs onto this machine: Debian packages, and programs built from source.

Both take minutes the first time, so they are made side by side, and with them what else is wanted of the machine.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

from weft_e2e.cluster import packages, preflight, toolchain
from weft_e2e.cluster.children import ended_when_interrupted
from weft_e2e.cluster.progress import Progress, Work

PACKAGES = "Debian packages"
PACKAGES_WORK_S = 30.0


@dataclass(frozen=True)
class Task:
    """Something to be made beside the programs; it may use Debian's packages."""

    parts: Mapping[str, float]
    """What it consists of, and the seconds each part takes; see Work."""
    run: Callable[[Work], object]


def install(progress: Progress, *, also: Collection[str] = (), beside: Sequence[Task] = ()) -> None:
    """Install and build what is missing; raise Refused where no cluster could run here anyway.

    ``also`` names programs that most clusters do without.
    """
    preflight.check_setup()
    programs = frozenset(name for name in toolchain.missing() if name not in toolchain.NATIVE)
    programs |= frozenset(toolchain.missing(frozenset(also))) if also else frozenset()
    parts = toolchain.work_of(programs)
    if packages.missing_packages():
        packages.check_installable()
        parts[PACKAGES] = PACKAGES_WORK_S
    for task in beside:
        parts |= task.parts
    work = Work(parts, progress)
    with work.reported(), ThreadPoolExecutor(max_workers=2) as pool, ended_when_interrupted():
        # Compilers of C and builders of images are Debian's; Go is not.
        futures = [pool.submit(_packages_and_others, work, beside)]
        if programs:
            futures.append(pool.submit(toolchain.build, work, programs))
        done, others = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:
            if others and (error := future.exception()) is not None:
                progress(f"failed, and the rest is made first: {error}")
    for future in futures:
        future.result()
    progress("everything the local cluster needs is here")


def _packages_and_others(work: Work, others: Sequence[Task]) -> None:
    if packages.missing_packages():
        with work.part(PACKAGES):
            packages.install(work.progress)
    toolchain.build(work, frozenset(toolchain.NATIVE))
    for task in others:
        task.run(work)
