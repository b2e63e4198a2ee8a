"""One file per question: what a model still knows of the leaver, and how sure that is."""
