"""Nodes that are containers: of Docker, or of Podman with its Docker-compatible socket."""
