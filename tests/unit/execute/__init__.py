"""Carrying out a plan on an engine that fails, waits and crashes as it is told."""
