"""Review sessions: one writer, drift check, rounds, the gate, stages, delivery (contract `review-sessions`)."""
