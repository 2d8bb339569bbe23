"""What a build keeps for the next one: the journal, settled kernels, the build cache, the timeline."""
