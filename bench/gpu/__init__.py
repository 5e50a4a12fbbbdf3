"""Check on a machine with a GPU what everything else here shows without one."""
