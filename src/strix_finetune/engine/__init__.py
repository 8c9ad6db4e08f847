"""Container engines: Docker and Podman behind one protocol, both through the docker Python SDK."""
