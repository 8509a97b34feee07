"""The command line. The only room that reads the environment and writes to the terminal by itself."""
