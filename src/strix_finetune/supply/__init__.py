"""What an image is made of, where it comes from, and who says so: bill of materials, provenance, signature, checks."""
