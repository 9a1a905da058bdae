"""What to do about it: filters, gangs, gather, ranks, the solver, the verifier, denials. Pure."""
