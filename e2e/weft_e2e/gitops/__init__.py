"""Weft under a real Argo CD: services scale again and again, and what the repository says stays in sync."""
