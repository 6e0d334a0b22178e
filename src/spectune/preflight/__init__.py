"""Rules over target, draft, flags, engine version and host -> findings, before anything is launched."""
