"""The web page: an ASGI app that reads run folders and changes nothing in them. What it shows it reads through `runs/`."""
