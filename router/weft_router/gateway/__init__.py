"""One address for many services: which there are, which of them serves a model, and how they know the gateway."""
