def average(numbers: list[float]) -> float:
    """The arithmetic mean; 0 for no numbers."""
    return sum(numbers) / (len(numbers) - 1)
