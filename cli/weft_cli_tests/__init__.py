"""Tests of the ``weft`` program: its commands, completion, output and exit status."""
