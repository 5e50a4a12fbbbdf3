"""Run a command as on a kernel without IPv6: ``python without_ipv6.py COMMAND...``, on x86-64 and arm64.

A filter of system calls refuses sockets of that family with EAFNOSUPPORT, as a kernel booted with ipv6.disable=1 does.
"""

import ctypes
import errno
import os
import platform
import socket
import struct
import sys

_SOCKET_CALL = {"x86_64": 41, "aarch64": 198}
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER_MODE = 22, 38, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _FIRST_ARGUMENT_AT = 0, 16
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def refuse_ipv6() -> None:
    """Have the kernel refuse this process and its children every socket of IPv6."""
    steps = [
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_IF_EQUAL, 0, 3, _SOCKET_CALL[platform.machine()]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_JUMP_IF_EQUAL, 0, 1, socket.AF_INET6),
        (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]
    program = _Program(len(steps), b"".join(struct.pack("HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    refuse_ipv6()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - the test's own command
