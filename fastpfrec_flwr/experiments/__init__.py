"""Studies: the paper's tables and figures as named suites, and anybody's own; a suite becomes runs, the runs a study folder."""
