"""The vocabulary and the aggregates: event structs, state, evolve and admission, one file an aggregate."""
