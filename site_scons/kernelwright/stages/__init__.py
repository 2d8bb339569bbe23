"""The stages of a build: what makes some files out of others. SCons is one way to run them; they know nothing of it."""
