"""What every server of ours is built on: keys, limits, the shape of errors, and child processes. It knows no engine and
no agent, and loads starlette and uvicorn only in the modules that need them."""
