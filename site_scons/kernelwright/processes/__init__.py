"""The processes of a build, as the build sees them: workers, compilers, and the memory that they may take."""
