"""What auditors use: checkpoints, proofs, witnesses, reasons and the web."""
