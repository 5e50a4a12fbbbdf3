"""Compiles the router's path of a request with mypyc, from the sources that run without it, too.

    PYTHONPATH=images python -m weft_compile --into FOLDER [--jobs 2]

Writes whole copies of router and core into an empty folder, with a compiled module beside each source of ``path.PATH``.
An interpreter that has the folder first on its path runs the compiled ones, and the router's image has them among its
packages: docs/decisions/0017. Needs mypy (with mypyc), setuptools and a C compiler, and what the router itself needs:
with GCC the modules are compiled twice, the second time by what an exercise of the first ones has shown.
"""
