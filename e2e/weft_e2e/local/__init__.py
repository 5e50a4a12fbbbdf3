"""One service as processes of this machine: plan, router and engines, without Kubernetes and without root."""
