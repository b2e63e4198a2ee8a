"""From a request and what is possible to a plan."""
