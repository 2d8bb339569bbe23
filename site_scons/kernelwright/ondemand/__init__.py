"""Compile on demand: definitions that are called without a build, by the stages of one."""
