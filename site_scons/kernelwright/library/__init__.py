"""What the library of a kernel is written from: the plan of the kernel, its C wrapper, and the launcher."""
