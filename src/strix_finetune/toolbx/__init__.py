"""Toolbx: its configuration, the image in the store that it reads, containers that are checked and refreshed."""
