"""Images as the OCI specifications describe them: descriptors, and local images in layers that repeat byte for byte."""
