"""Ensembles: many models of each kind, compared with the kind that never saw the leaver."""
