"""From run folders and studies to tables, plots and one page that opens without a network."""
