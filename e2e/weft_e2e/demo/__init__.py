"""The main job: a planned service on a real cluster, replayed agent sessions, a table and a report."""
