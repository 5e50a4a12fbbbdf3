"""Reconcilers of services and worker groups, the work queue that calls them, and the process around both."""
