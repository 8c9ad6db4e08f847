"""A stand-in for AMD's package servers: their layout over HTTP on this machine's loopback, with small stub wheels.

    from tests.standin.amd import RELEASE, archives
    from tests.standin.server import Standin
    from tests.standin.tree import Tree

    with Standin(Tree(archives(RELEASE, ["gfx1151"]))) as amd:
        ... amd.index is what stands for the index of images/channels/amd.toml ...

The stubs have the names, versions, dependencies and files of the real packages, and compute nothing: whatever a test
shows with them is shown about this project's own work, and about no GPU and no library of AMD's.
"""
