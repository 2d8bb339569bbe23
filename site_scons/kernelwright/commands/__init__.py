"""The commands of ``kernelwright``: a module for each, with its help, its arguments and its exit statuses."""

COMMANDS = {
    **{name: name for name in ("doctor", "tool", "report", "cache", "tune", "worker", "init")},
    "import": "importer",  # the word is a keyword of Python
    "record": "record",
    **{name: name for name in ("verify", "diff", "explain", "bench", "merge")},
}
"""Name of a command -> its module here, which has it as ``COMMAND``; in the order in which help lists them."""
