"""The version, in a module of its own so that the build back end can read it without importing the package."""

VERSION = "0.1.0"
