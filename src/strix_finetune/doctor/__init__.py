"""`doctor`: what on this host would keep the images from running well, said before they do not.

Checks are functions of a `Host`, which reads files below a root folder; what only the machine itself can tell (its
engine, opening a device, free space, the network) is asked through `Edges`, and of the real root alone.
"""
