"""The log: envelope, canonical bytes, hash chain, stores, verification, proofs.

Knows events only as typed bytes; what a type means is the business of `projections`.
"""
