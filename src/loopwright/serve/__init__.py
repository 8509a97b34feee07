"""The base of all our servers: keys, limits, the shape of errors, and child processes. It knows no engine and no agent.
Only the modules that need starlette and uvicorn import them."""
