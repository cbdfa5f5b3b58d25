"""The version of the code that runs, which need not be the one that is installed."""

VERSION = "0.2.0"
