"""`train bench`: model x adapter x backend on the machine that this is, each cell a run in a process of its own."""
