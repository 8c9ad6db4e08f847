"""Push, pull and reuse by key: a registry in this process, an engine in memory, images of a few bytes."""
