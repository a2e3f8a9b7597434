"""Dispatch: which model of which provider does a request, and whether its result counts (contract page dispatch)."""
