def leap_year(year: int) -> bool:
    """Whether a year has 366 days, in the Gregorian calendar."""
    return year % 4 == 0
