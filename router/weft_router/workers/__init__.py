"""One worker of the service: its engine, its prefill queue, the rounds that it decodes, its heartbeat."""
