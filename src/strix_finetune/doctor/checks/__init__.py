"""One module a family of checks; each exports its `Check`s, and `registry` lists them all."""
