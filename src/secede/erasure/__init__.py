"""A real erasure: from a signed request to a signed receipt that verifies offline."""
