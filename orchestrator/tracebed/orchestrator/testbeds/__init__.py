"""The wing of all I/O: how nodes are described, reached and watched."""
