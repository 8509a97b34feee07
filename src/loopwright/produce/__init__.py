"""How groups are made: the boundary around user code, retries, refills and budgets."""
