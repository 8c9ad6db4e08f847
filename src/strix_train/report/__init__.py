"""One page about a run, complete in itself: it may be sent by mail, and loads nothing from anywhere."""
