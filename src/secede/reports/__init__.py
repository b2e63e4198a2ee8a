"""Records on disk become tables, figures, a verdict in plain words and one HTML page.

Reports read records only, never import torch and compute no model anew. `build.write_report`
writes everything; the terminal uses `tables` and `analysis.verdict` without matplotlib.
"""
