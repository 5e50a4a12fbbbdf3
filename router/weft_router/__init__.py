"""Data plane: the coordinator and the prefill and decode sidecars that route multi-round sessions."""
