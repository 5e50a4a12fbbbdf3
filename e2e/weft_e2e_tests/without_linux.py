"""Take away from every Python process below what only Linux has: names of the standard library, /proc and /sys.

What macOS has not must not be needed where no cluster can run. The stand-in is a ``sitecustomize`` on PYTHONPATH.
"""

from pathlib import Path

SITECUSTOMIZE = """
import importlib, os, select, selectors, signal, socket, sys

for module, names in {
    os: ("sched_getaffinity", "sched_setaffinity", "pidfd_open", "eventfd", "memfd_create", "setns", "unshare",
         "posix_fadvise", "posix_fallocate", "fdatasync", "pipe2", "splice", "copy_file_range", "getrandom",
         "O_TMPFILE", "O_PATH", "O_DIRECT", "SCHED_BATCH", "P_PIDFD"),
    select: ("epoll",),
    signal: ("sigtimedwait", "sigwaitinfo", "SIGPWR", "SIGSTKFLT", "SIGPOLL", "SIGRTMIN"),
    socket: ("AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_BINDTODEVICE",
             "SO_DOMAIN", "SO_PROTOCOL", "SO_PEERCRED", "TCP_USER_TIMEOUT", "TCP_QUICKACK", "TCP_DEFER_ACCEPT",
             "TCP_CORK", "MSG_CMSG_CLOEXEC", "MSG_MORE"),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

importlib.reload(selectors)  # chooses among what is left

def refuse(event, args):
    if event in ("open", "os.listdir", "os.scandir") and isinstance(args[0], (str, bytes, os.PathLike)):
        place = os.fsdecode(args[0])
        if place.startswith(("/proc", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", place)

sys.addaudithook(refuse)
"""


def environment(folder: Path) -> dict[str, str]:
    """Return what a process has to be told to run without; ``folder`` holds the stand-in."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    return {"PYTHONPATH": str(folder)}
