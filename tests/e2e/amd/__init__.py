"""The channel `amd` for real, on Docker, with a stand-in for AMD's servers: lock, vendor, offline build, smoke tests.

What the stubs cannot show is not shown: the smoke tests that compile or compute say so, and are counted as not run.
The locks, the folder of inputs and the images are made once for all modules here.
"""
