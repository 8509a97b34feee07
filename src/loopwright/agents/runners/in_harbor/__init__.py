"""Files for Harbor's interpreter (Python 3.12). They import Harbor and nothing of Loopwright, and Loopwright imports
none of them."""
