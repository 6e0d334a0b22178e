"""Findings from what a run left behind: logs, a running server, a study directory."""
