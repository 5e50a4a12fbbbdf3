"""A virtual machine with Debian's own kernel: for what depends on the kernel's settings, as control groups do.

QEMU emulates the processor, so neither KVM nor a network is needed. The machine runs one Python program from the
checkout and writes what that reports to a second serial port.
"""

from weft_e2e.vm.machine import Report, boot

__all__ = ["Report", "boot"]
