"""What a build keeps for the next one: finished kernels, the build cache, the timeline."""
