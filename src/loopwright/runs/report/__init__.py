"""The report: a run as one HTML file. `gather` reads the run folder, all other modules only know plain values."""
