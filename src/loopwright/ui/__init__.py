"""The web page: an ASGI app that reads run folders, through `runs/`, and changes
nothing in them."""
