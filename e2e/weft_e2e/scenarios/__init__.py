"""Parts of end-to-end scenarios: small services, load in the background, a cluster with Weft on it."""
