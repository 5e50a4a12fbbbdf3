"""The status of services and worker groups: conditions, their reasons, Events and the runbook."""
