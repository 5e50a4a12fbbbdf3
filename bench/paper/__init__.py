"""Rerun what can be rerun of the papers on the simulator, and write one page about it: ``python -m bench.paper``."""
