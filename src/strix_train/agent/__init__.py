"""What runs on each node while a cluster is checked: it tells facts and tries the ways to the other nodes.

Nothing but the standard library, and no import of the rest of this package: the driver lays these files into a
container of any image that has Python. `reduce` alone imports torch, in a process of its own.
"""
