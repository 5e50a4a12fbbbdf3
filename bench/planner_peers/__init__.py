"""Weft's plans beside those of NVIDIA's aiconfigurator, on the same tables of operator times."""
