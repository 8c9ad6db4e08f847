"""Measurements, each one command: `python -m bench NAME`. Peers are measured in the same run, on the same machine."""
