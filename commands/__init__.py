"""Decide functions, adapters to git, files and agents, and the command line."""
