"""Verbs of the ``weft`` command for people who run services: read with the rights of the one who calls them."""
