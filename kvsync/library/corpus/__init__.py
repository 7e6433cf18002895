"""Documents in a library: cut into passages, each an artifact of its own, found by their words, cited."""
