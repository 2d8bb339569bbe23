"""What a kernel package is assembled from."""
