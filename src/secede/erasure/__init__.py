"""The erasure of one client, from a signed request to a signed receipt that verifies offline."""
