"""What arrives: distributions, arrivals and sessions, fitted to traces or given."""
