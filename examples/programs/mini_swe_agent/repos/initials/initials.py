def initials(name: str) -> str:
    """The first letters of all words of a name, in capitals: "ada king lovelace" has "AKL"."""
    first, last = name.split(" ")
    return first[0] + last[0]
