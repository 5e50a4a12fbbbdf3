"""The endpoint picker: chooses the workers to which a gateway's proxy sends requests (Envoy's ext_proc protocol)."""
