"""The page of an audit, from its ensembles and their scores; never torch."""
