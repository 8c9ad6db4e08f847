"""Real machines on one host, for the tests of several machines: see `desk`."""
