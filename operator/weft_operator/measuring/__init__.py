"""What is known of a running service: measured by its routers, kept by Prometheus, read here."""
