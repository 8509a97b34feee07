"""`python -m loopwright.config` lists every option.

A committed copy of that list makes a new option visible in review. After adding one, run
`python -m loopwright.config > tests/config/options.txt` and describe it in docs/config.md.
"""

from loopwright.config.fields import options

if __name__ == "__main__":
    print(*options(), sep="\n")
