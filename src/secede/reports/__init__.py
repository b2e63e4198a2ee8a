"""Records on disk become tables, figures, a verdict in plain words and one HTML page.

Nothing here imports torch, and nothing is computed anew: what a report says, the records hold.
`build.write_report` writes it all; `tables` and `verdict` serve the terminal without matplotlib.
"""
