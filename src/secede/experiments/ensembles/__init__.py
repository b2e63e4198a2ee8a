"""Ensembles of models for an audit: many federations, trained, retrained and erased end to end."""
