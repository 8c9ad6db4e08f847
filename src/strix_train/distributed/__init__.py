"""Several processes that train one model: who they are, what they must agree on, how they end, how they share it."""
