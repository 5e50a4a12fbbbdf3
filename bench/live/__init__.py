"""Goodput of Weft's routing and of other routers on the same mock engines, measured live."""
