"""Registries: a client of the OCI distribution API, and what is pushed to and pulled from one."""
