"""Proofs that need no trust in whoever hands them over: Merkle tree, tiles, signed notes, proof files.

Provers read storage; checkers take only arguments, so a verifier needs no ledger and no database.
"""
