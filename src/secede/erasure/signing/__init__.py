"""Ed25519 keys, and signed envelopes."""
