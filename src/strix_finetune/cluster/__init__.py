"""Several machines: what cluster.toml says, reaching its nodes, checking them, and training on them."""
