"""What a kernel package consists of: its manifest, stubs and the loader that is copied into it."""
